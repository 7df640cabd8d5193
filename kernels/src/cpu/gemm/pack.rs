//! Weights in the order in which the kernels read them.
//!
//! A panel is 32 output columns. Its row `k` is 16 words of 32 bits; word `j` holds column `j` in
//! its low half and column `j + 16` in its high half, so one 512-bit load, a shift and a mask give
//! the 32 weights as floats.

use std::sync::Arc;

use half::bf16;

use super::tile::PANEL;
use crate::cpu::shared::SharedSlice;
use crate::cpu::threads::{Items, Pool, TaskPanic};
use crate::memory::{HugeBuffer, LINE};

/// One allocation that the matrices of a model are carved from.
#[derive(Debug)]
pub struct WeightMemory {
    memory: Arc<HugeBuffer>,
    /// Bytes handed out.
    used: usize,
}

impl WeightMemory {
    /// Room for matrices whose [`PackedMatrix::bytes`] add up to `bytes`.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        Ok(Self {
            memory: Arc::new(HugeBuffer::zeroed(bytes)?),
            used: 0,
        })
    }

    /// Carves a matrix of `outputs` columns over an inner dimension of `inner`, all zero.
    /// `gated` pairs each output's gate and up columns. Panics if the memory is exhausted.
    pub fn matrix(&mut self, inner: usize, outputs: usize, gated: bool) -> PackedMatrix {
        let (memory, offset) = self.carve(PackedMatrix::bytes(inner, outputs, gated));
        PackedMatrix {
            memory,
            offset: offset / 2,
            inner,
            outputs,
            gated,
        }
    }

    /// Carves `bytes` zeroed bytes, a multiple of 64: the memory and where they begin in it. Panics
    /// if it is exhausted.
    pub(crate) fn carve(&mut self, bytes: usize) -> (Arc<HugeBuffer>, usize) {
        assert!(bytes.is_multiple_of(LINE), "{bytes} bytes are no lines");
        let offset = self.used;
        self.used += bytes;
        assert!(self.used <= self.memory.len(), "weight memory is full");
        (Arc::clone(&self.memory), offset)
    }
}

/// Which columns of a matrix a tensor fills.
#[derive(Debug, Clone, Copy)]
pub enum Columns {
    /// Consecutive ones from here on.
    From(usize),
    /// The gate column of every output of a gated matrix.
    Gate,
    /// The up column of every output of a gated matrix.
    Up,
}

/// A weight matrix in panels.
#[derive(Debug)]
pub struct PackedMatrix {
    memory: Arc<HugeBuffer>,
    offset: usize,
    inner: usize,
    outputs: usize,
    gated: bool,
}

impl PackedMatrix {
    /// Start of the panel where a thread's share of a product begins.
    pub(crate) fn start_of_share(&self, share: &Items<'_>) -> *const u8 {
        self.panel(share.start_of(self.panels()))
    }

    /// Bytes of a packed matrix, whole cache lines: matrices start at one.
    pub fn bytes(inner: usize, outputs: usize, gated: bool) -> usize {
        let width = if gated { PANEL / 2 } else { PANEL };
        (outputs.div_ceil(width) * PANEL * inner * size_of::<bf16>()).next_multiple_of(LINE)
    }

    /// The inner dimension, k.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// Columns of the product, n.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Whether each output has a gate and an up column.
    pub fn is_gated(&self) -> bool {
        self.gated
    }

    /// Outputs of a panel: 32, or 16 if gated.
    pub fn outputs_per_panel(&self) -> usize {
        if self.gated { PANEL / 2 } else { PANEL }
    }

    /// Panels; the last may have unused columns, which are zero.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(self.outputs_per_panel())
    }

    fn elements(&self) -> usize {
        self.panels() * PANEL * self.inner
    }

    /// Start of a panel: `inner` rows of 32 columns.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> *const u8 {
        assert!(panel < self.panels());
        let element = self.offset + panel * PANEL * self.inner;
        self.memory
            .as_ptr()
            .cast::<u16>()
            .wrapping_add(element)
            .cast()
    }

    /// Packs `rows`, `[columns][inner]` row-major, into the given columns. Panics if they do not
    /// fit.
    pub fn fill(
        &mut self,
        pool: &mut Pool,
        columns: Columns,
        rows: &[bf16],
    ) -> Result<(), TaskPanic> {
        let inner = self.inner;
        let count = rows.len() / inner;
        assert_eq!(rows.len(), count * inner, "rows of {inner}");
        let (first, width, lane) = match columns {
            Columns::From(first) => (first, PANEL, 0),
            Columns::Gate => (0, PANEL / 2, 0),
            Columns::Up => (0, PANEL / 2, PANEL / 2),
        };
        assert_eq!(self.gated, width < PANEL, "{columns:?}");
        assert!(first + count <= self.outputs, "too many columns");
        if count == 0 {
            return Ok(());
        }
        let base = self.memory.as_ptr().cast::<u16>().wrapping_add(self.offset);
        // SAFETY: `matrix` carved `elements` bf16 at `offset`, zeroed, for this matrix alone, and
        // `&mut self` excludes readers.
        let packed = unsafe { std::slice::from_raw_parts_mut(base, self.elements()) };
        let packed = SharedSlice::new(packed);
        let first_panel = first / width;
        let last_panel = (first + count - 1) / width;
        pool.run(last_panel - first_panel + 1, |task, _| {
            let panel = first_panel + task;
            // SAFETY: one task a panel.
            let packed = unsafe { packed.slice(panel * PANEL * inner, PANEL * inner) };
            let columns = (panel * width).max(first)..((panel + 1) * width).min(first + count);
            // Over short stretches of k, so that the lines written stay in the L1 cache until all
            // columns have been there.
            for start in (0..inner).step_by(64) {
                let stretch = start..inner.min(start + 64);
                for column in columns.clone() {
                    let lane = lane + column % width;
                    let place = lane % 16 * 2 + lane / 16;
                    let row = &rows[(column - first) * inner..][..inner];
                    for k in stretch.clone() {
                        packed[k * PANEL + place] = row[k].to_bits();
                    }
                }
            }
        })
    }

    /// Writes one column, `inner` floats; the embedding row of a token if the matrix is a tied
    /// output projection.
    pub fn column(&self, column: usize, out: &mut [f32]) {
        assert!(!self.gated && column < self.outputs && out.len() == self.inner);
        let lane = column % PANEL;
        let place = lane % 16 * 2 + lane / 16;
        let start = self.offset + column / PANEL * PANEL * self.inner;
        // SAFETY: within the elements of this matrix, which nobody writes while `&self` lives.
        let panel = unsafe {
            let start = self.memory.as_ptr().cast::<u16>().add(start);
            std::slice::from_raw_parts(start, PANEL * self.inner)
        };
        for (x, row) in out.iter_mut().zip(panel.chunks_exact(PANEL)) {
            *x = f32::from_bits(u32::from(row[place]) << 16);
        }
    }
}
