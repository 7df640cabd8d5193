//! Decode attention over shrunk blocks: its kernels, and the formats that they read.

use std::sync::Arc;

use super::{DecodeMergeParams, MixedDecodeParams};
use crate::cuda::driver::{Device, Kernel};
use crate::cuda::error::CudaError;
use crate::formats::FormatId;
use crate::kv::KvLayout;

/// The kernel that reads blocks as they have shrunk.
#[derive(Debug)]
pub(super) struct Mixed {
    pub(super) kernel: Kernel<MixedDecodeParams>,
    pub(super) merge: Kernel<DecodeMergeParams>,
    pub(super) threads: u32,
    /// Whether it uses the copy engine.
    pub(super) copies: bool,
    pub(super) grid: u32,
}

/// An instance of `MixedDecode` of decode_mixed.cuh.
#[derive(Debug, Clone, Copy)]
pub(super) struct MixedShape {
    head_dim: usize,
    /// Of four query heads, that a unit has.
    sets: usize,
}

impl MixedShape {
    const STAGES: usize = 2;

    /// For `rows` rows of a sequence and `group` query heads of a KV head.
    pub(super) fn of(head_dim: usize, rows: usize, group: usize) -> Self {
        let sets = if rows * group <= 4 { 1 } else { 2 };
        Self { head_dim, sets }
    }

    /// Columns, pairs of a row and a query head, of a unit.
    pub(super) fn columns(self) -> usize {
        4 * self.sets
    }
}

/// How a warp's chunks come to it: `Way` of decode_pieces.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the copy engine.
    Bulk,
    /// The warp copies them itself.
    Ring,
}

impl Way {
    fn of(device: &Device) -> Self {
        match device.has_copy_engine() {
            true => Self::Bulk,
            false => Self::Ring,
        }
    }

    /// Kernel, and the one that merges units; `None` if there are none for the head size.
    fn names(self, shape: MixedShape) -> Option<(&'static str, &'static str)> {
        let kernel = match (self, shape.head_dim, shape.sets) {
            (Self::Bulk, 128, 1) => "decode_mixed_d128_h4",
            (Self::Bulk, 128, 2) => "decode_mixed_d128_h8",
            (Self::Bulk, 64, 1) => "decode_mixed_d64_h4",
            (Self::Bulk, 64, 2) => "decode_mixed_d64_h8",
            (Self::Ring, 128, 1) => "decode_mixed_ring_d128_h4",
            (Self::Ring, 128, 2) => "decode_mixed_ring_d128_h8",
            (Self::Ring, 64, 1) => "decode_mixed_ring_d64_h4",
            (Self::Ring, 64, 2) => "decode_mixed_ring_d64_h8",
            _ => return None,
        };
        let merge = match shape.head_dim {
            128 => "decode_merge_d128",
            _ => "decode_merge_d64",
        };
        Some((kernel, merge))
    }

    /// `kWarps`.
    fn warps(self, shape: MixedShape) -> usize {
        match (self, shape.sets) {
            (Self::Bulk, 1) => 7,
            (Self::Ring, 1) => 4,
            _ => 5,
        }
    }

    /// `kUnits`.
    fn units(self) -> usize {
        match self {
            Self::Bulk => 4,
            Self::Ring => 3,
        }
    }

    /// `kThreads`.
    fn threads(self, shape: MixedShape) -> u32 {
        (self.warps(shape) as u32 + 1) * 32
    }

    /// `kSharedBytes`.
    fn shared_bytes(self, shape: MixedShape) -> usize {
        let largest = if shape.head_dim == 128 {
            5760
        } else {
            512 + 4096
        };
        let stage = 1024 * usize::div_ceil(largest, 1024);
        let steps = shape.head_dim / 16;
        let (warps, units, stages) = (self.warps(shape), self.units(), MixedShape::STAGES);
        let part = (steps * 128 + 64) * shape.sets;
        let queries = 2 * steps * 256 + steps * 128 * shape.sets + 32 + 8;
        let turns = 16 + units * 4;
        let full = (warps * (stages * stage + part) + units * queries + turns).next_multiple_of(8);
        let shifts = 512;
        (full + warps * (stages * (8 + 4) + 4 * 4) + shifts).next_multiple_of(16) + 32
    }
}

impl Mixed {
    /// None if there is no kernel for the shape, or the device cannot run it.
    pub(super) fn new(device: &Arc<Device>, shape: MixedShape) -> Result<Option<Self>, CudaError> {
        let way = Way::of(device);
        let (shared, threads) = (way.shared_bytes(shape), way.threads(shape));
        let Some((name, merge)) = way.names(shape) else {
            return Ok(None);
        };
        if shared > device.shared_bytes_max() {
            return Ok(None);
        }
        let kernel = device.kernel(name, shared)?;
        let ctas = kernel.ctas_per_multiprocessor(threads)?;
        Ok(Some(Self {
            kernel,
            merge: device.kernel(merge, 0)?,
            threads,
            copies: way == Way::Bulk,
            grid: (ctas * device.multiprocessors()) as u32,
        }))
    }

    /// Whether it knows all formats of a layout.
    pub(super) fn reads(layout: &KvLayout) -> bool {
        use FormatId as F;
        let formats = (0..layout.positions() as u16).flat_map(|p| layout.formats(p));
        formats.into_iter().all(|f| {
            matches!(
                f,
                F::F16
                    | F::Int8
                    | F::Int4
                    | F::Kitty25c
                    | F::Kitty12c
                    | F::Int2c
                    | F::Kitty25
                    | F::Kitty12
                    | F::Int2
                    | F::Int3
                    | F::Polar44
                    | F::Polar42
                    | F::Polar44Grid
            )
        })
    }
}
