//! The frames of the KV cache in device memory.

use std::sync::Arc;

use super::driver::{Device, DeviceBuffer, Stream, TensorMap};
use super::error::CudaError;
use super::ops::Fill;
use super::params::{DevicePtr, TensorDim};
use crate::SUB_BLOCK_TOKENS;
use crate::kv::{FrameLayout, KvGeometry, KvLayout};

/// All frames of the pool in one allocation; frame `i` starts at byte `i * frame_bytes`.
#[derive(Debug)]
pub struct DeviceArena {
    memory: DeviceBuffer<u8>,
    geometry: KvGeometry,
    layout: FrameLayout,
    pages: KvLayout,
    frames: u32,
    maps: Option<RecordMaps>,
}

/// The arena as the copy engine sees it: rows of `head_dim` channels, cut into halves of 64. A copy
/// at (0, row, half) brings the 16 rows of a sub-record from there on; in shared memory a half is
/// `[16 rows][128 bytes]`, swizzled.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordMaps {
    /// A copy brings all halves, one after the other.
    pub(super) whole: TensorMap,
    /// A copy brings one half.
    pub(super) half: TensorMap,
}

impl RecordMaps {
    /// Channels of a half: 128 bytes, the widest row that the swizzle knows.
    const HALF: usize = 64;

    fn new(memory: &DeviceBuffer<u8>, head_dim: usize) -> Result<Self, CudaError> {
        let (row_bytes, halves) = (2 * head_dim, head_dim / Self::HALF);
        let map = |tile_halves: usize| {
            let dim = |len: usize, stride: usize, tile: usize| TensorDim {
                len: len as u64,
                stride_bytes: stride as u64,
                tile: tile as u32,
            };
            TensorMap::new(
                memory.ptr(),
                &[
                    dim(Self::HALF, 2, Self::HALF),
                    dim(memory.len() / row_bytes, row_bytes, SUB_BLOCK_TOKENS),
                    dim(halves, 2 * Self::HALF, tile_halves),
                ],
            )
        };
        Ok(Self {
            whole: map(halves)?,
            half: map(1)?,
        })
    }
}

impl DeviceArena {
    /// Allocates `frames` frames, all bytes `0xff` (NaN in bf16), so that a read of memory that no
    /// row has written shows.
    pub fn new(
        device: &Arc<Device>,
        geometry: KvGeometry,
        layout: FrameLayout,
        frames: u32,
    ) -> Result<Self, CudaError> {
        Self::of_layout(device, &KvLayout::unshrunk(geometry, layout), frames, 0)
    }

    /// The same for blocks that shrink, with `scratch` frames behind those of the pool, which no
    /// table of the pool's names.
    pub(super) fn of_layout(
        device: &Arc<Device>,
        pages: &KvLayout,
        frames: u32,
        scratch: u32,
    ) -> Result<Self, CudaError> {
        let (geometry, layout) = (pages.geometry(), pages.frame());
        let bytes = layout.frame_bytes * (frames as usize + scratch as usize);
        let memory = DeviceBuffer::filled(device, bytes, 0xff, "the KV cache")?;
        let mapped = device.has_copy_engine()
            && geometry.head_dim.is_multiple_of(RecordMaps::HALF)
            && !memory.is_empty();
        let maps = mapped
            .then(|| RecordMaps::new(&memory, geometry.head_dim))
            .transpose()?;
        Ok(Self {
            memory,
            geometry,
            layout,
            pages: pages.clone(),
            frames,
            maps,
        })
    }

    /// The shape of the cache.
    pub fn geometry(&self) -> KvGeometry {
        self.geometry
    }

    /// How sub-blocks are cut into frames.
    pub fn layout(&self) -> FrameLayout {
        self.layout
    }

    /// Where pages lie, at every precision level.
    pub(super) fn pages(&self) -> &KvLayout {
        &self.pages
    }

    /// Frames of the pool.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Overwrites one frame, and waits. Panics if the frame or the length is wrong.
    pub fn write_frame(&mut self, frame: u32, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(
            frame < self.frames && bytes.len() == self.layout.frame_bytes,
            "frame {frame} of {}",
            self.frames
        );
        self.memory
            .write(frame as usize * self.layout.frame_bytes, bytes)
    }

    /// Overwrites all frames, and waits. Panics if the length is wrong.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), CudaError> {
        assert_eq!(bytes.len(), self.frames as usize * self.layout.frame_bytes);
        self.memory.write(0, bytes)
    }

    /// Fills all pages with random values, uniform in ±1; for measurements.
    pub fn fill_random(&mut self, seed: u64) -> Result<(), CudaError> {
        let stream = Stream::new(self.memory.device())?;
        let fill = Fill::new(self.memory.device())?;
        // SAFETY: the memory lives as long as `self`, and the call waits for the stream.
        unsafe {
            fill.run(
                &stream,
                self.memory.ptr(),
                self.memory.len() / 2,
                seed,
                1.0,
                0.0,
            )?
        };
        stream.synchronize()
    }

    /// Reads one frame, of the pool or of scratch, and waits. Panics if the frame is out of range.
    pub fn read_frame(&self, frame: u32) -> Result<Vec<u8>, CudaError> {
        let mut bytes = vec![0; self.layout.frame_bytes];
        self.memory
            .read(frame as usize * self.layout.frame_bytes, &mut bytes)?;
        Ok(bytes)
    }

    /// Enqueues a copy of frame `src` over frame `dst`. Panics if either is out of range.
    pub(super) fn copy_frame(
        &mut self,
        stream: &Stream,
        src: u32,
        dst: u32,
    ) -> Result<(), CudaError> {
        assert!(
            src < self.frames && dst < self.frames,
            "copy {src} to {dst} of {}",
            self.frames
        );
        if src == dst {
            return Ok(());
        }
        let bytes = self.layout.frame_bytes;
        stream.copy_within(
            &mut self.memory,
            src as usize * bytes,
            dst as usize * bytes,
            bytes,
        )
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        self.memory.ptr()
    }
    /// The arena as the copy engine sees it; none if the device has none or the shape does not fit
    /// it.
    pub(super) fn maps(&self) -> Option<&RecordMaps> {
        self.maps.as_ref()
    }

    /// Sub-records in a frame.
    pub(super) fn records_per_frame(&self) -> u32 {
        (self.layout.frame_bytes / self.geometry.sub_record_bytes()) as u32
    }
}
