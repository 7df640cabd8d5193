//! Decode attention over shrunk blocks: its kernels, and the formats that they read.

use std::sync::Arc;

use super::{DecodeMergeParams, MixedDecodeParams};
use crate::cuda::driver::{Device, Kernel};
use crate::cuda::error::CudaError;
use crate::formats::FormatId;
use crate::kv::KvLayout;

/// What formats ask of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Codes, and 16-bit rows.
    Codes,
    /// Polar keys as well.
    Polar,
}

impl Needs {
    /// `None` if no kernel reads all formats of the layout.
    pub(super) fn of(layout: &KvLayout) -> Option<Self> {
        use FormatId as F;
        let formats = (0..layout.positions() as u16).flat_map(|p| layout.formats(p));
        formats
            .into_iter()
            .try_fold(Self::Codes, |needs, f| match f {
                F::Polar44 | F::Polar42 | F::Polar44Grid => Some(Self::Polar),
                F::F16
                | F::Int8
                | F::Int4
                | F::Kitty25c
                | F::Kitty12c
                | F::Int2c
                | F::Kitty25
                | F::Kitty12
                | F::Int2
                | F::Int3 => Some(needs),
                _ => None,
            })
    }
}

/// The kernels that read blocks as they have shrunk.
#[derive(Debug)]
pub(super) struct Mixed {
    /// For all formats.
    all: Instance,
    /// For those that are not polar, if that is another one.
    codes: Option<Instance>,
    needs: Needs,
    pub(super) merge: Kernel<DecodeMergeParams>,
    /// Whether they use the copy engine.
    pub(super) copies: bool,
}

/// A kernel with its persistent grid.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) kernel: Kernel<MixedDecodeParams>,
    pub(super) threads: u32,
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

/// How a warp's chunks come to it: `Way` and `POLAR` of `MixedPieces` of decode_pieces.cuh.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// By the copy engine, none of them of polar keys.
    Bulk,
    /// By the copy engine.
    BulkPolar,
    /// The warp copies them itself.
    Ring,
}

impl Way {
    /// The kernel; `None` if there is none for the head size.
    fn name(self, shape: MixedShape) -> Option<&'static str> {
        Some(match (self, shape.head_dim, shape.sets) {
            (Self::Bulk, 128, 1) => "decode_mixed_d128_h4",
            (Self::Bulk, 128, 2) => "decode_mixed_d128_h8",
            (Self::Bulk, 64, 1) => "decode_mixed_d64_h4",
            (Self::Bulk, 64, 2) => "decode_mixed_d64_h8",
            (Self::BulkPolar, 128, 1) => "decode_mixed_polar_d128_h4",
            (Self::BulkPolar, 128, 2) => "decode_mixed_polar_d128_h8",
            (Self::BulkPolar, 64, 1) => "decode_mixed_polar_d64_h4",
            (Self::BulkPolar, 64, 2) => "decode_mixed_polar_d64_h8",
            (Self::Ring, 128, 1) => "decode_mixed_ring_d128_h4",
            (Self::Ring, 128, 2) => "decode_mixed_ring_d128_h8",
            (Self::Ring, 64, 1) => "decode_mixed_ring_d64_h4",
            (Self::Ring, 64, 2) => "decode_mixed_ring_d64_h8",
            _ => return None,
        })
    }

    /// Whether the copy engine brings chunks.
    fn copies(self) -> bool {
        matches!(self, Self::Bulk | Self::BulkPolar)
    }

    /// `kTeams`.
    fn teams(self) -> usize {
        if self.copies() { 2 } else { 1 }
    }

    /// `kWarps`.
    fn warps(self, shape: MixedShape) -> usize {
        match (self.copies(), shape.sets) {
            (true, _) => 6,
            (false, 1) => 4,
            (false, _) => 5,
        }
    }

    /// `kUnits`.
    fn units(self) -> usize {
        if self.copies() { 4 } else { 3 }
    }

    /// `kThreads`.
    fn threads(self, shape: MixedShape) -> u32 {
        let others = if self.copies() { 2 } else { 1 };
        (self.teams() * (self.warps(shape) + others)) as u32 * 32
    }

    /// `kSharedBytes`.
    fn shared_bytes(self, shape: MixedShape) -> usize {
        let largest = if shape.head_dim == 128 {
            5760
        } else {
            512 + 4096
        };
        let ring = MixedShape::STAGES * 1024 * usize::div_ceil(largest, 1024);
        let steps = shape.head_dim / 16;
        let (warps, units) = (self.warps(shape), self.units());
        let part = (steps * 128 + 64) * shape.sets;
        let sums = if shape.sets == 2 { 512 } else { 0 };
        let queries = 3 * steps * 128 * shape.sets + 32 + 8;
        let (turns, shifts) = (16 + units * 4, 128);
        let team = warps * (part + sums) + units * queries + turns + shifts;
        self.teams() * (warps * ring + team.next_multiple_of(128)) + 16
    }
}

impl Instance {
    /// None if there is no kernel for the shape, or the device cannot run it.
    fn new(device: &Arc<Device>, way: Way, shape: MixedShape) -> Result<Option<Self>, CudaError> {
        let (shared, threads) = (way.shared_bytes(shape), way.threads(shape));
        let Some(name) = way.name(shape) else {
            return Ok(None);
        };
        if shared > device.shared_bytes_max() {
            return Ok(None);
        }
        let kernel = device.kernel(name, shared)?;
        let ctas = kernel.ctas_per_multiprocessor(threads)?;
        Ok(Some(Self {
            kernel,
            threads,
            grid: (ctas * device.multiprocessors()) as u32,
        }))
    }
}

impl Mixed {
    /// None if there is no kernel for the shape, or the device cannot run it.
    pub(super) fn new(device: &Arc<Device>, shape: MixedShape) -> Result<Option<Self>, CudaError> {
        let copies = device.has_copy_engine();
        let (all, codes) = match copies {
            true => (Way::BulkPolar, Some(Way::Bulk)),
            false => (Way::Ring, None),
        };
        let Some(all) = Instance::new(device, all, shape)? else {
            return Ok(None);
        };
        let codes = codes.map(|way| Instance::new(device, way, shape));
        let merge = match shape.head_dim {
            128 => "decode_merge_d128",
            _ => "decode_merge_d64",
        };
        Ok(Some(Self {
            all,
            codes: codes.transpose()?.flatten(),
            needs: Needs::Polar,
            merge: device.kernel(merge, 0)?,
            copies,
        }))
    }

    /// The kernel for the layout that was last taken; of any, if none was.
    pub(super) fn instance(&self) -> &Instance {
        match (&self.codes, self.needs) {
            (Some(codes), Needs::Codes) => codes,
            _ => &self.all,
        }
    }

    /// Reads pages of this layout from here on; steps that are recorded before keep their kernel. Whether it can.
    pub(super) fn take(&mut self, layout: &KvLayout) -> bool {
        let needs = Needs::of(layout);
        self.needs = needs.unwrap_or(Needs::Polar);
        needs.is_some()
    }

    /// Whether the kernel is one that knows polar keys.
    pub(super) fn knows_polar(&self) -> bool {
        std::ptr::eq(self.instance(), &self.all)
    }
}
