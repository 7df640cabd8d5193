//! Pages below 16 bit on the device: launches of `cuda/formats`, and what goes to and fro for shrinks.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::arena::DeviceArena;
use super::driver::{Device, DeviceBuffer, Kernel, Pinned, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, KernelParams};
use crate::backend::{ShrinkFailure, StepInput};
use crate::formats::{FormatError, FormatId};
use crate::kv::{KvGeometry, KvLayout, Side};

/// `ebb::PageOfPosition` of formats/pool.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct PageOfPosition {
    start: u32,
    bytes: u32,
    format: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<PageOfPosition>() == 16);

/// `ebb::KvPool` of formats/pool.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct KvPool {
    arena: DevicePtr,
    pages: DevicePtr,
    frames: DevicePtr,
    frame_bytes: u64,
    page_count: u32,
    kv_heads: u32,
    frames_per_sub_block: u32,
    records_per_frame: u32,
}
const _: () = assert!(size_of::<KvPool>() == 48);

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct TranscodeParams {
    pool: KvPool,
    jobs: DevicePtr,
    failures: DevicePtr,
}
// SAFETY: field for field `ebb::TranscodeParams` of formats/transcode.cu.
unsafe impl KernelParams for TranscodeParams {}

/// Words of a `ebb::ShrinkJob`: positions from and to, first frames of source and target.
const JOB_WORDS: usize = 4;
/// What a shrink reports when nothing failed.
const SOUND: u64 = u64::MAX;
/// Shrinks of one launch: the rows of a grid.
const LAUNCH_MAX: usize = 65_535;

/// The number that a format has on the device; none if it has no codec there.
fn device_format(format: FormatId) -> Option<u32> {
    use FormatId as F;
    match format {
        F::F16 => Some(0),
        F::Int8 => Some(1),
        F::Int4 => Some(2),
        F::Kitty25 => Some(3),
        F::Kitty12 => Some(4),
        F::Int2 => Some(5),
        F::Int3 => Some(6),
        _ => None,
    }
}

/// Whether the device has a codec for every page of a layout.
pub(super) fn supports(layout: &KvLayout) -> bool {
    let formats = (0..layout.positions() as u16).flat_map(|p| layout.formats(p));
    let pages = layout.positions() == 1 || matches!(layout.geometry().head_dim, 64 | 128);
    pages && formats.into_iter().all(|f| device_format(*f).is_some())
}

/// The host's side of one step; two are in use by turns.
#[derive(Debug)]
struct Host {
    /// Jobs, then frames.
    words: Pinned<u32>,
    failures: Pinned<u64>,
    shrinks: usize,
}

/// Kernels and buffers that transcode pages of one pool.
#[derive(Debug)]
pub(super) struct Codecs {
    transcode: Kernel<TranscodeParams>,
    layout: KvLayout,
    threads: u32,
    pages: DeviceBuffer<PageOfPosition>,
    shrinks_max: usize,
    words: DeviceBuffer<u32>,
    failures: DeviceBuffer<u64>,
    hosts: [Host; 2],
    // What `wait` lends.
    told: Vec<ShrinkFailure>,
}

/// Shrinks of a step at most, and words of their jobs and frames: no frame is named twice, and a shrink names two at least.
fn most(frames: u32) -> (usize, usize) {
    let shrinks = frames as usize / 2;
    (shrinks, JOB_WORDS * shrinks + frames as usize)
}

impl Codecs {
    /// For a pool of `frames` frames; `None` if its blocks never shrink.
    pub(super) fn new(
        device: &Arc<Device>,
        layout: &KvLayout,
        frames: u32,
    ) -> Result<Option<Self>, CudaError> {
        if layout.positions() == 1 {
            return Ok(None);
        }
        let head_dim = layout.geometry().head_dim;
        if !supports(layout) {
            return Err(CudaError::Unsupported(format!(
                "a shrink schedule with formats that the device has no codec for, at head_dim {head_dim}"
            )));
        }
        let shared = 256 * head_dim + 8192; // page_shared_bytes of formats/page.cuh
        let name = if head_dim == 64 {
            "transcode_d64"
        } else {
            "transcode_d128"
        };
        let (shrinks_max, words) = most(frames);
        let host = || -> Result<Host, CudaError> {
            Ok(Host {
                words: Pinned::new(device, words)?,
                failures: Pinned::new(device, shrinks_max)?,
                shrinks: 0,
            })
        };
        let what = "shrinks";
        Ok(Some(Self {
            transcode: device.kernel(name, shared)?,
            threads: 2 * head_dim as u32,
            pages: DeviceBuffer::from_slice(device, &page_table(layout), "the shrink schedule")?,
            shrinks_max,
            words: DeviceBuffer::filled(device, words, 0, what)?,
            failures: DeviceBuffer::new(device, shrinks_max, what)?,
            hosts: [host()?, host()?],
            told: Vec::new(),
            layout: layout.clone(),
        }))
    }

    /// Bytes that `new` allocates on the device.
    pub(super) fn bytes(layout: &KvLayout, frames: u32) -> usize {
        if layout.positions() == 1 {
            return 0;
        }
        let (shrinks, words) = most(frames);
        let pages = (layout.positions() - 1) * layout.geometry().layers * 2;
        pages * size_of::<PageOfPosition>() + 4 * words + 8 * shrinks
    }

    /// Enqueues the shrinks of a checked step. `turn` names the host's buffers; the step that used them last has been waited for.
    pub(super) fn shrink(
        &mut self,
        stream: &Stream,
        turn: usize,
        arena: &mut DeviceArena,
        input: &StepInput,
    ) -> Result<(), CudaError> {
        let count = input.shrinks.len();
        let host = &mut self.hosts[turn];
        host.shrinks = count;
        if count == 0 {
            return Ok(());
        }
        assert!(count <= self.shrinks_max, "no frame is named twice");
        let mut end = JOB_WORDS * count;
        for (i, shrink) in input.shrinks.iter().enumerate() {
            let (source, target) = shrink.frames(&self.layout, input);
            let mut put = |frames: &[u32]| {
                host.words[end..end + frames.len()].copy_from_slice(frames);
                end += frames.len();
                (end - frames.len() - JOB_WORDS * count) as u32
            };
            let firsts = [put(source), put(target)];
            let [from, to] = [shrink.from, shrink.to].map(u32::from);
            host.words[JOB_WORDS * i..][..JOB_WORDS]
                .copy_from_slice(&[from, to, firsts[0], firsts[1]]);
        }
        host.failures[..count].fill(SOUND);
        // SAFETY: the step that used these buffers of the host last has been waited for, and they live as long as `self`, whose
        // owner waits for the stream before it drops them.
        unsafe {
            stream.upload(&mut self.words, 0, &host.words, end)?;
            stream.upload(&mut self.failures, 0, &host.failures, count)?;
        }
        let records = self.layout.geometry().records() as u32;
        for first in (0..count).step_by(LAUNCH_MAX) {
            let part = LAUNCH_MAX.min(count - first);
            let params = TranscodeParams {
                pool: self.pool(arena, self.words.at(JOB_WORDS * count)),
                jobs: self.words.at(JOB_WORDS * first),
                failures: self.failures.at(first),
            };
            let grid = (records, part as u32);
            // SAFETY: the step was checked: positions exist, frames are in the pool, and no frame is a target and anything else.
            // Work of one stream runs in order.
            unsafe { self.transcode.launch(stream, grid, self.threads, &params)? };
        }
        // SAFETY: as of the uploads.
        unsafe { stream.download(&mut self.hosts[turn].failures, 0, &self.failures, count) }
    }

    fn pool(&self, arena: &DeviceArena, frames: DevicePtr) -> KvPool {
        let geometry = self.layout.geometry();
        KvPool {
            arena: arena.ptr(),
            pages: self.pages.ptr(),
            frames,
            frame_bytes: arena.layout().frame_bytes as u64,
            page_count: geometry.layers as u32 * 2,
            kv_heads: geometry.kv_heads as u32,
            frames_per_sub_block: arena.layout().frames_per_sub_block as u32,
            records_per_frame: arena.records_per_frame(),
        }
    }

    /// Which shrinks of the step that used the host's buffers `turn` failed. The stream must have run them.
    pub(super) fn failures(&mut self, turn: usize) -> &[ShrinkFailure] {
        let host = &self.hosts[turn];
        self.told.clear();
        for (shrink, word) in host.failures[..host.shrinks].iter().enumerate() {
            if *word != SOUND {
                let failure = failure(self.layout.geometry(), shrink, *word);
                self.told.push(failure);
            }
        }
        &self.told
    }
}

/// `[position - 1][layer * 2 + side]`.
fn page_table(layout: &KvLayout) -> Vec<PageOfPosition> {
    let geometry = layout.geometry();
    let page = |position: u16, layer: usize, side: Side| {
        let place = layout.place(position, geometry.record(layer, side, 0));
        PageOfPosition {
            start: place.frame * layout.frame().frame_bytes as u32 + place.offset,
            bytes: layout.record_bytes(position, layer, side) as u32,
            format: device_format(layout.format(position, layer, side)).unwrap_or(0),
            reserved: 0,
        }
    };
    let positions = 1..layout.positions() as u16;
    positions
        .flat_map(|p| (0..geometry.layers).flat_map(move |l| [Side::K, Side::V].map(|s| (p, l, s))))
        .map(|(position, layer, side)| page(position, layer, side))
        .collect()
}

/// What a word of the device says: record << 42 | kind << 40 | details (formats/quantise.cuh).
fn failure(geometry: KvGeometry, shrink: usize, word: u64) -> ShrinkFailure {
    let record = (word >> 42) as usize;
    let page = record / geometry.kv_heads;
    let side = Side::of_page(page);
    let half = |shift: u32| bf16::from_bits((word >> shift) as u16);
    let error = if word >> 40 & 1 == 1 {
        FormatError::RangeBeyondFp16 {
            group: match side {
                Side::K => "channel",
                Side::V => "token",
            },
            index: (word >> 32 & 0xff) as usize,
            min: half(16).to_f32(),
            max: half(0).to_f32(),
        }
    } else {
        let element = (word >> 16 & 0xff_ffff) as usize;
        let (token, channel) = (element / geometry.head_dim, element % geometry.head_dim);
        let value = half(0);
        if value.is_finite() {
            FormatError::BeyondFp16 {
                token,
                channel,
                value,
            }
        } else {
            FormatError::NonFinite {
                token,
                channel,
                value,
            }
        }
    };
    ShrinkFailure {
        shrink,
        layer: page / 2,
        side,
        kv_head: record % geometry.kv_heads,
        error,
    }
}
