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
    pub(super) shape: MixedShape,
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
    /// `kCtas`.
    const CTAS: usize = 2;

    /// For `rows` rows of a sequence and `group` query heads of a KV head.
    pub(super) fn of(head_dim: usize, rows: usize, group: usize) -> Self {
        let sets = if rows * group <= 4 { 1 } else { 2 };
        Self { head_dim, sets }
    }

    /// Columns, pairs of a row and a query head, of a unit.
    pub(super) fn columns(self) -> usize {
        4 * self.sets
    }

    /// Kernel, and the one that merges units; `None` if there are none for the head size.
    fn names(self) -> Option<(&'static str, &'static str)> {
        match (self.head_dim, self.sets) {
            (128, 1) => Some(("decode_mixed_d128_h4", "decode_merge_d128")),
            (128, 2) => Some(("decode_mixed_d128_h8", "decode_merge_d128")),
            (64, 1) => Some(("decode_mixed_d64_h4", "decode_merge_d64")),
            (64, 2) => Some(("decode_mixed_d64_h8", "decode_merge_d64")),
            _ => None,
        }
    }

    /// `kWarps`.
    fn warps(self) -> usize {
        if self.sets == 1 { 7 } else { 5 }
    }

    /// `kThreads`.
    pub(super) fn threads(self) -> u32 {
        (self.warps() as u32 + 1) * 32
    }

    /// `kSharedBytes`.
    fn shared_bytes(self) -> usize {
        let largest = if self.head_dim == 128 {
            5760
        } else {
            512 + 4096
        };
        let stage = 1024 * usize::div_ceil(largest, 1024);
        let steps = self.head_dim / 16;
        let part = (steps * 128 + 64) * self.sets;
        let queries = 4 * (2 * steps * 256 + steps * 128 * self.sets + 32 + 8 + 4) + 16;
        let warp = Self::STAGES * (stage + 8 + 4) + part + 4 * 4;
        let shifts = 512;
        (self.warps() * warp + queries + shifts).next_multiple_of(16) + 32
    }
}

impl Mixed {
    /// None if the device cannot run it.
    pub(super) fn new(device: &Arc<Device>, shape: MixedShape) -> Result<Option<Self>, CudaError> {
        let shared = shape.shared_bytes();
        let Some((name, merge)) = shape.names() else {
            return Ok(None);
        };
        if !device.has_copy_engine() || shared > device.shared_bytes_max() {
            return Ok(None);
        }
        Ok(Some(Self {
            kernel: device.kernel(name, shared)?,
            merge: device.kernel(merge, 0)?,
            shape,
            grid: (MixedShape::CTAS * device.multiprocessors()) as u32,
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
