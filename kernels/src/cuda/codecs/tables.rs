//! What the device knows of the precision levels of blocks, and what its words of failure mean.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::super::driver::{Device, DeviceBuffer};
use super::super::error::CudaError;
use super::super::params::DevicePtr;
use crate::backend::ShrinkFailure;
use crate::formats::FormatError;
use crate::formats::gpu::Writer;
use crate::kv::{KvGeometry, KvLayout};

/// `ebb::PageAtLevel` of formats/pool.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct PageAtLevel {
    start: u32,
    bytes: u32,
    format: u32,
    clipped: u32,
}
const _: () = assert!(size_of::<PageAtLevel>() == 16);

/// Whether the device has a codec for every page of a layout: of heads of 256 channels, for those
/// of the ladders alone.
pub(in crate::cuda) fn supports(layout: &KvLayout) -> bool {
    match layout.geometry().head_dim {
        _ if layout.levels() == 1 => true,
        64 | 128 => true,
        256 => !encodes(layout),
        _ => false,
    }
}

/// Whether a layout has pages that encode.cu writes.
pub(super) fn encodes(layout: &KvLayout) -> bool {
    let mut formats = (0..layout.levels() as u16).flat_map(|p| layout.formats(p));
    formats.any(|f| f.gpu_writer() == Writer::Encode)
}

/// The formats and places of all pages at all precision levels but 0, in device memory:
/// `[level - 1][place of the layer * 2 + side]` ([`KvGeometry::layer_place`]).
#[derive(Debug)]
pub(in crate::cuda) struct PageTable {
    pages: DeviceBuffer<PageAtLevel>,
    levels: u32,
}

/// Where a [`PageTable`] lies, as kernels are told.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct PagePlaces {
    pub(in crate::cuda) ptr: DevicePtr,
    /// Precision levels that it has, which are all but 0.
    pub(in crate::cuda) levels: u32,
}

impl PageTable {
    pub(in crate::cuda) fn new(device: &Arc<Device>, layout: &KvLayout) -> Result<Self, CudaError> {
        let pages = page_table(layout);
        Ok(Self {
            pages: DeviceBuffer::from_slice(device, &pages, "the table of page formats")?,
            levels: layout.levels() as u32 - 1,
        })
    }

    /// Bytes that `new` allocates.
    pub(super) fn bytes(layout: &KvLayout) -> usize {
        (layout.levels() - 1) * layout.geometry().layers * 2 * size_of::<PageAtLevel>()
    }

    pub(in crate::cuda) fn ptr(&self) -> DevicePtr {
        self.pages.ptr()
    }

    pub(in crate::cuda) fn places(&self) -> PagePlaces {
        PagePlaces {
            ptr: self.ptr(),
            levels: self.levels,
        }
    }
}

fn page_table(layout: &KvLayout) -> Vec<PageAtLevel> {
    let geometry = layout.geometry();
    let page = |level: u16, page: usize| {
        let record = page * geometry.kv_heads;
        let (layer, side, _) = geometry.of_record(record);
        let place = layout.place(level, record);
        let format = layout.format(level, layer, side);
        PageAtLevel {
            start: place.frame * layout.frame().frame_bytes as u32 + place.offset,
            bytes: layout.record_bytes(level, layer, side) as u32,
            format: format.gpu_number(),
            clipped: format.is_clipped().into(),
        }
    };
    let levels = 1..layout.levels() as u16;
    levels
        .flat_map(|level| (0..geometry.layers * 2).map(move |page| (level, page)))
        .map(|(level, index)| page(level, index))
        .collect()
}

/// What a word of the device says: record << 44 | kind << 41 | details (`FailureKind` of
/// formats/quantise.cuh).
pub(super) fn failure(geometry: KvGeometry, shrink: usize, word: u64) -> ShrinkFailure {
    let record = (word >> 44) as usize;
    let (layer, side, kv_head) = geometry.of_record(record);
    let half = |shift: u32| bf16::from_bits((word >> shift) as u16);
    let index = (word >> 32 & 0x1ff) as usize;
    let range = |group| FormatError::RangeBeyondFp16 {
        group,
        index,
        min: half(16).to_f32(),
        max: half(0).to_f32(),
    };
    let error = match word >> 41 & 7 {
        0 => {
            let element = (word >> 16 & 0xff_ffff) as usize;
            let (token, channel) = (element / geometry.head_dim, element % geometry.head_dim);
            FormatError::of_element(token, channel, half(0))
        }
        1 => range("channel"),
        2 => range("token"),
        3 => range("group of 32"),
        _ => FormatError::RadiusBeyondFp16 {
            pair: index,
            radius: f32::from_bits(word as u32),
        },
    };
    ShrinkFailure {
        shrink,
        layer,
        side,
        kv_head,
        error,
    }
}
