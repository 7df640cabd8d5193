//! What the device knows of a schedule, and what its words of failure mean.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::super::driver::{Device, DeviceBuffer};
use super::super::error::CudaError;
use super::super::params::DevicePtr;
use crate::backend::ShrinkFailure;
use crate::formats::{FormatError, FormatId};
use crate::kv::{KvGeometry, KvLayout, Side};

/// `ebb::PageOfPosition` of formats/pool.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct PageOfPosition {
    start: u32,
    bytes: u32,
    format: u32,
    clipped: u32,
}
const _: () = assert!(size_of::<PageOfPosition>() == 16);

/// `ebb::PageFormat` of formats/pool.cuh. To readers clipped formats are the others.
fn device_format(format: FormatId) -> u32 {
    use FormatId as F;
    match format {
        F::F16 => 0,
        F::Int8 => 1,
        F::Int4 => 2,
        F::Kitty25 | F::Kitty25c => 3,
        F::Kitty12 | F::Kitty12c => 4,
        F::Int2 | F::Int2c => 5,
        F::Int3 => 6,
        F::Int2g32 => 7,
        F::Kvmix11 => 8,
        F::Int4g32 => 9,
        F::Polar44 => 10,
        F::Polar42 => 11,
        F::Polar44Grid => 12,
        F::Int4t => 13,
        F::Int2t => 14,
        F::Kitty25Variance => 15,
        F::Kitty12Variance => 16,
        F::Kitty25Random => 17,
        F::Kitty12Random => 18,
        F::Int4Shift => 19,
        F::Int2Shift => 20,
        F::Int4RoundingShift => 21,
        F::Int2RoundingShift => 22,
    }
}

fn is_clipped(format: FormatId) -> bool {
    matches!(
        format,
        FormatId::Kitty25c | FormatId::Kitty12c | FormatId::Int2c
    )
}

/// Whether the device has a codec for every page of a layout.
pub(in crate::cuda) fn supports(layout: &KvLayout) -> bool {
    layout.positions() == 1 || matches!(layout.geometry().head_dim, 64 | 128)
}

/// Whether a layout has pages that encode.cu makes.
pub(super) fn encodes(layout: &KvLayout) -> bool {
    let mut formats = (0..layout.positions() as u16).flat_map(|p| layout.formats(p));
    formats.any(|f| device_format(*f) > device_format(FormatId::Int3))
}

/// The formats and places of all pages at all positions but 0, `[position - 1][layer * 2 + side]`,
/// in device memory.
#[derive(Debug)]
pub(in crate::cuda) struct PageTable {
    pages: DeviceBuffer<PageOfPosition>,
    positions: u32,
}

/// Where a [`PageTable`] lies, as kernels are told.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct PagePlaces {
    pub(in crate::cuda) ptr: DevicePtr,
    /// Positions that it has, which are all but 0.
    pub(in crate::cuda) positions: u32,
}

impl PageTable {
    pub(in crate::cuda) fn new(device: &Arc<Device>, layout: &KvLayout) -> Result<Self, CudaError> {
        let pages = page_table(layout);
        Ok(Self {
            pages: DeviceBuffer::from_slice(device, &pages, "the shrink schedule")?,
            positions: layout.positions() as u32 - 1,
        })
    }

    /// Bytes that `new` allocates.
    pub(super) fn bytes(layout: &KvLayout) -> usize {
        (layout.positions() - 1) * layout.geometry().layers * 2 * size_of::<PageOfPosition>()
    }

    pub(in crate::cuda) fn ptr(&self) -> DevicePtr {
        self.pages.ptr()
    }

    pub(in crate::cuda) fn places(&self) -> PagePlaces {
        PagePlaces {
            ptr: self.ptr(),
            positions: self.positions,
        }
    }
}

fn page_table(layout: &KvLayout) -> Vec<PageOfPosition> {
    let geometry = layout.geometry();
    let page = |position: u16, layer: usize, side: Side| {
        let place = layout.place(position, geometry.record(layer, side, 0));
        let format = layout.format(position, layer, side);
        PageOfPosition {
            start: place.frame * layout.frame().frame_bytes as u32 + place.offset,
            bytes: layout.record_bytes(position, layer, side) as u32,
            format: device_format(format),
            clipped: is_clipped(format).into(),
        }
    };
    let positions = 1..layout.positions() as u16;
    positions
        .flat_map(|p| (0..geometry.layers).flat_map(move |l| [Side::K, Side::V].map(|s| (p, l, s))))
        .map(|(position, layer, side)| page(position, layer, side))
        .collect()
}

/// What a word of the device says: record << 44 | kind << 41 | details (`FailureKind` of
/// formats/quantise.cuh).
pub(super) fn failure(geometry: KvGeometry, shrink: usize, word: u64) -> ShrinkFailure {
    let record = (word >> 44) as usize;
    let page = record / geometry.kv_heads;
    let side = Side::of_page(page);
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
        layer: page / 2,
        side,
        kv_head: record % geometry.kv_heads,
        error,
    }
}
