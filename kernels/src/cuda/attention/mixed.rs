//! Decode attention over shrunk blocks: its kernels, and the formats that they read.

use std::sync::Arc;

use super::{Merge, MixedDecodeParams, Scored, load_merge};
use crate::cuda::driver::{Device, Kernel};
use crate::cuda::error::CudaError;
use crate::formats::gpu::Reader;
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
        let formats = (0..layout.levels() as u16).flat_map(|p| layout.formats(p));
        formats
            .into_iter()
            .try_fold(Self::Codes, |needs, f| match f.gpu_reader() {
                Reader::Rows | Reader::Codes => Some(needs),
                Reader::Polar => Some(Self::Polar),
                Reader::Scratch => None,
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
    pub(super) merge: Merge,
    /// Whether they use the copy engine.
    pub(super) copies: bool,
}

/// A kernel with its persistent grid.
#[derive(Debug)]
pub(super) struct Instance {
    shape: MixedShape,
    pub(super) launches: Scored<Launch>,
    threads: u32,
}

#[derive(Debug)]
pub(super) struct Launch {
    pub(super) kernel: Kernel<MixedDecodeParams>,
    pub(super) grid: u32,
}

/// An instance of `MixedDecode` of decode_mixed.cuh.
#[derive(Debug, Clone, Copy)]
pub(super) struct MixedShape {
    head_dim: usize,
    /// Of four columns, that a unit has: one, two or four.
    sets: usize,
}

impl MixedShape {
    /// For `rows` rows of a sequence and `group` query heads of a KV head.
    pub(super) fn of(head_dim: usize, rows: usize, group: usize) -> Self {
        let columns = rows * group;
        // A unit of sixteen columns takes as long as 1.4 to 1.7 units of eight (H200).
        let sets = match columns {
            0..=4 => 1,
            _ if 8 * columns.div_ceil(16) < 5 * columns.div_ceil(8) => 4,
            _ => 2,
        };
        Self { head_dim, sets }
    }

    /// The same for kernels that have no units of sixteen columns: two units over the same blocks.
    pub(super) fn narrow(self) -> Self {
        let sets = self.sets.min(2);
        Self { sets, ..self }
    }

    /// `STAGES`.
    fn stages(self) -> usize {
        if self.sets == 4 { 3 } else { 2 }
    }

    /// `kPair`.
    fn pair(self) -> usize {
        if self.sets == 4 { 2 } else { 1 }
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
    /// The kernel, and the same for scores of any kind; `None` if there is none for the head size.
    fn names(self, shape: MixedShape) -> Option<[&'static str; 2]> {
        macro_rules! both {
            ($name:literal) => {
                [$name, concat!($name, "_any")]
            };
        }
        Some(match (self, shape.head_dim, shape.sets) {
            (Self::Bulk, 128, 1) => both!("decode_mixed_d128_h4"),
            (Self::Bulk, 128, 2) => both!("decode_mixed_d128_h8"),
            (Self::Bulk, 128, 4) => both!("decode_mixed_d128_h16"),
            (Self::Bulk, 64, 1) => both!("decode_mixed_d64_h4"),
            (Self::Bulk, 64, 2) => both!("decode_mixed_d64_h8"),
            (Self::Bulk, 64, 4) => both!("decode_mixed_d64_h16"),
            (Self::BulkPolar, 128, 1) => both!("decode_mixed_polar_d128_h4"),
            (Self::BulkPolar, 128, 2) => both!("decode_mixed_polar_d128_h8"),
            (Self::BulkPolar, 64, 1) => both!("decode_mixed_polar_d64_h4"),
            (Self::BulkPolar, 64, 2) => both!("decode_mixed_polar_d64_h8"),
            (Self::Ring, 128, 1) => both!("decode_mixed_ring_d128_h4"),
            (Self::Ring, 128, 2) => both!("decode_mixed_ring_d128_h8"),
            (Self::Ring, 64, 1) => both!("decode_mixed_ring_d64_h4"),
            (Self::Ring, 64, 2) => both!("decode_mixed_ring_d64_h8"),
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
            (true, _) => 6 / shape.pair(),
            (false, 1) => 4,
            (false, _) => 5,
        }
    }

    /// `kUnits`.
    fn units(self, shape: MixedShape) -> usize {
        if self.copies() && shape.sets != 4 {
            4
        } else {
            3
        }
    }

    /// `kThreads`.
    fn threads(self, shape: MixedShape) -> u32 {
        let others = if self.copies() { 2 } else { 1 };
        (self.teams() * (self.warps(shape) * shape.pair() + others)) as u32 * 32
    }

    /// `kSharedBytes`.
    fn shared_bytes(self, shape: MixedShape) -> usize {
        let largest = if shape.head_dim == 128 {
            5760
        } else {
            512 + 4096
        };
        let ring = shape.stages() * 1024 * usize::div_ceil(largest, 1024);
        let steps = shape.head_dim / 16;
        let (warps, units) = (self.warps(shape), self.units(shape));
        let (sets, pair) = (shape.sets, shape.pair());
        let part = (steps * 128 + 64 * pair) * sets;
        let sums = [0, 512, 1024 + 64][sets / 2];
        let (own, probs, exchange) = match sets {
            4 => (0, 8 * 2 * 256, 2 * 32 * sets),
            _ => (steps * 128 * sets, 0, 0),
        };
        let columns = shape.columns().max(8);
        let queries = 2 * steps * 128 * sets + own + 4 * columns + columns;
        let (turns, shifts) = (16 + units * 4, 128);
        let team =
            warps * (part + pair * sums + probs + exchange) + units * queries + turns + shifts;
        self.teams() * (warps * ring + team.next_multiple_of(128)) + 16
    }
}

impl Instance {
    /// None if there is no kernel for the shape, or the device cannot run it.
    fn new(
        device: &Arc<Device>,
        way: Way,
        shape: MixedShape,
        any: bool,
    ) -> Result<Option<Self>, CudaError> {
        let (shared, threads) = (way.shared_bytes(shape), way.threads(shape));
        let Some([name, of_any]) = way.names(shape) else {
            return Ok(None);
        };
        if shared > device.shared_bytes_max() {
            return Ok(None);
        }
        let launch = |is_plain| -> Result<Launch, CudaError> {
            let name = if is_plain { name } else { of_any };
            let kernel: Kernel<MixedDecodeParams> = device.kernel(name, shared)?;
            let ctas = kernel.ctas_per_multiprocessor(threads)?;
            Ok(Launch {
                kernel,
                grid: (ctas * device.multiprocessors()) as u32,
            })
        };
        Ok(Some(Self {
            shape,
            launches: Scored::load(any, launch)?,
            threads,
        }))
    }
}

impl Mixed {
    /// None if there is no kernel for the shape, or the device cannot run it. `any`: also for
    /// scores of any kind.
    pub(super) fn new(
        device: &Arc<Device>,
        shape: MixedShape,
        any: bool,
    ) -> Result<Option<Self>, CudaError> {
        let copies = device.has_copy_engine();
        let (all, codes) = match copies {
            true => (Way::BulkPolar, Some(Way::Bulk)),
            false => (Way::Ring, None),
        };
        let Some(all) = Instance::new(device, all, shape.narrow(), any)? else {
            return Ok(None);
        };
        let codes = codes.map(|way| Instance::new(device, way, shape, any));
        Ok(Some(Self {
            all,
            codes: codes.transpose()?.flatten(),
            needs: Needs::Polar,
            merge: load_merge(device, shape.head_dim, any)?,
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

    pub(super) fn threads(&self) -> u32 {
        self.instance().threads
    }

    /// Columns of its units.
    pub(super) fn columns(&self) -> usize {
        self.instance().shape.columns()
    }

    /// Reads pages of this layout from here on; steps that are recorded before keep their kernel.
    /// Whether it can.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_as_many_columns_as_take_least_time() {
        let columns = |rows, group| MixedShape::of(128, rows, group).columns();
        assert_eq!([1, 3, 4].map(|g| columns(1, g)), [4; 3]);
        assert_eq!([5, 7, 8].map(|g| columns(1, g)), [8; 3]);
        assert_eq!([9, 12, 16].map(|g| columns(1, g)), [16; 3]);
        // Three units of eight take less time than two of sixteen, four more.
        assert_eq!([(4, 5), (2, 12)].map(|(r, g)| columns(r, g)), [8; 2]);
        assert_eq!(
            [(4, 8), (5, 8), (16, 8)].map(|(r, g)| columns(r, g)),
            [16; 3]
        );
    }
}
