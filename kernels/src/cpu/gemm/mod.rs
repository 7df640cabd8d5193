//! Matrix products `out[m][n] = a[m][k] · w[n][k]ᵀ` of f32 activations and bf16 weights.
//!
//! Every output element is one chain of fused multiply-adds over `k` in ascending order, starting
//! at zero, whatever the number of rows, the tile or the thread. That makes products
//! batch-invariant by construction, which no general GEMM promises, and it costs nothing here: the
//! weights are packed at load so that a tile keeps its sums in registers over all of `k`.

mod epilogue;
mod pack;
mod tile;

pub use pack::{Columns, PackedMatrix, WeightMemory};

pub(crate) use epilogue::finish;
pub(crate) use tile::{F32Panel, PANEL, Panel, Rows, Sums, multiply_tile};

use super::prefetch::{Lines, StartOfNext};
use super::shared::SharedSlice;
use super::simd::{Isa, Kernel, Simd};
use super::threads::{Items, Pool, TaskPanic};
use crate::model::Activation;
use tile::{Bf16Panel, MAX_TILE_ROWS};

/// What happens to a sum before it is stored.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a> {
    /// `out = sum`.
    Store,
    /// `out = sum + bias`; the bias is padded with anything to whole panels of 32 columns.
    Bias(&'a [f32]),
    /// `out = out + sum`, the residual connection.
    Add,
    /// `out = activation(gate) * up`, for a matrix of gate and up columns ([`Columns::Gate`]).
    Gated(Activation),
}

/// Rows that a task of a large product covers: small enough that they stay in the L2 cache while
/// the panels of the task pass by.
pub(crate) const ROW_BLOCK: usize = 96;

/// Bytes of weights that a task of a large product covers, to stay in the L2 cache as well.
const CHUNK_BYTES: usize = 256 << 10;

/// A product to compute.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// Rows, m.
    pub rows: usize,
    /// `[m][w.inner()]`, contiguous.
    pub a: &'a [f32],
    /// The weights.
    pub w: &'a PackedMatrix,
    /// What happens to each sum.
    pub epilogue: Epilogue<'a>,
    /// The weights of the product that will follow, if known: memory fetches them while the threads
    /// meet and do what lies in between.
    pub next: Option<&'a PackedMatrix>,
}

/// Where outputs go: to some columns of `rows` rows, or to all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The first column.
    pub(crate) first: usize,
    /// Columns of a row.
    pub(crate) stride: usize,
}

impl Product<'_> {
    /// Computes `out[m][w.outputs()]`, contiguous.
    ///
    /// Panics if a slice is too short or the epilogue does not suit the matrix; returns an error if
    /// a worker panicked.
    pub fn run(&self, pool: &mut Pool, isa: Isa, out: &mut [f32]) -> Result<(), TaskPanic> {
        let all = Place {
            first: 0,
            stride: self.w.outputs(),
        };
        match self.next {
            Some(w) => self.run_to(
                pool,
                isa,
                (out, all),
                Some(&|share| w.start_of_share(share)),
            ),
            None => self.run_to(pool, isa, (out, all), None),
        }
    }

    /// [`Product::run`] into some columns of `out`; `next` is in place of the product's.
    pub(crate) fn run_to(
        &self,
        pool: &mut Pool,
        isa: Isa,
        (out, place): (&mut [f32], Place),
        next: Option<StartOfNext<'_>>,
    ) -> Result<(), TaskPanic> {
        let m = self.rows;
        self.check(out.len(), place);
        if m == 0 {
            return Ok(());
        }
        let out = (SharedSlice::new(out), place);
        let product = *self;
        let row_blocks = m.div_ceil(ROW_BLOCK);
        if row_blocks == 1 {
            return pool.run_shares(self.w.panels(), |panels| {
                isa.run(Share {
                    product,
                    panels,
                    out,
                    next,
                });
            });
        }
        let by_cache = self.panels_per_chunk();
        let by_balance = (self.w.panels() * row_blocks / (pool.threads() * 16)).max(1);
        let chunk = by_cache.min(by_balance);
        pool.run(self.w.panels().div_ceil(chunk) * row_blocks, |i, _| {
            let first = i / row_blocks * chunk;
            let block = i % row_blocks;
            let rows = (block * m / row_blocks, (block + 1) * m / row_blocks);
            let panels = (first, product.w.panels().min(first + chunk));
            product.chunk(isa, rows, panels, out);
        })
    }

    /// Panics if a task would read or write what is not its own, or leave something out.
    pub(crate) fn check(&self, out: usize, place: Place) {
        let (m, k, n) = (self.rows, self.w.inner(), self.w.outputs());
        assert!(self.a.len() >= m * k, "{} < {m} x {k}", self.a.len());
        assert!(place.first + n <= place.stride, "{n} columns in {place:?}");
        assert!(out >= m * place.stride, "{out} < {m} rows");
        let gated = matches!(self.epilogue, Epilogue::Gated(_));
        assert_eq!(gated, self.w.is_gated(), "gates are of gate and up");
        if let Epilogue::Bias(bias) = self.epilogue {
            assert!(bias.len() >= self.w.panels() * PANEL, "bias is not padded");
        }
    }

    /// Computes some rows of some panels on this thread, of a product that was checked. Concurrent
    /// calls with the same output have other rows, panels or columns.
    pub(crate) fn chunk(
        &self,
        isa: Isa,
        rows: (usize, usize),
        panels: (usize, usize),
        out: (SharedSlice<'_, f32>, Place),
    ) {
        isa.run(Chunk {
            product: *self,
            rows,
            panels,
            out,
        });
    }

    /// Panels that a task of a large product covers.
    pub(crate) fn panels_per_chunk(&self) -> usize {
        (CHUNK_BYTES / (self.w.inner() * PANEL * 2)).max(1)
    }

    /// Computes rows `first..end` of one panel.
    #[inline(always)]
    fn panel<S: Simd>(
        &self,
        s: S,
        (first, end): (usize, usize),
        panel: usize,
        sums: &mut TileSums,
        (out, place): (SharedSlice<'_, f32>, Place),
    ) {
        let (k, n) = (self.w.inner(), self.w.outputs());
        let width = self.w.outputs_per_panel();
        let column = panel * width;
        let valid = width.min(n - column);
        let weights = Bf16Panel(self.w.panel(panel));
        let rows = end - first;
        let tiles = rows.div_ceil(S::TILE_ROWS);
        for tile in 0..tiles {
            let start = first + tile * rows / tiles;
            let count = first + (tile + 1) * rows / tiles - start;
            let a = Rows {
                start: self.a[start * k..(start + count) * k].as_ptr(),
                stride: k,
                k,
            };
            let tile = Sums {
                start: sums.0.as_mut_ptr(),
                stride: PANEL,
                add: false,
            };
            // SAFETY: `a` holds `count` rows of `k`, the panel `k` rows, and `sums` has room for
            // the largest tile.
            unsafe { multiply_tile(s, count, a, weights, tile) };
            for (r, sums) in sums.0.chunks_exact(PANEL).enumerate().take(count) {
                // SAFETY: tasks cover disjoint rows and panels, hence disjoint outputs.
                let out =
                    unsafe { out.slice((start + r) * place.stride + place.first + column, valid) };
                epilogue::finish(s, self.epilogue, sums, panel, out);
            }
        }
    }
}

/// The sums of a tile, which start at a cache line.
#[repr(align(64))]
struct TileSums([f32; MAX_TILE_ROWS * PANEL]);

impl TileSums {
    fn new() -> Self {
        Self([0.0; MAX_TILE_ROWS * PANEL])
    }
}

/// All rows of the panels that one thread gets.
struct Share<'a> {
    product: Product<'a>,
    panels: Items<'a>,
    out: (SharedSlice<'a, f32>, Place),
    next: Option<StartOfNext<'a>>,
}

impl Kernel for Share<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let product = &self.product;
        // What other threads have just written, all at once instead of line by line when needed.
        Lines::of(&product.a[..product.rows * product.w.inner()]).prefetch(s);
        let mut sums = TileSums::new();
        for panels in &mut self.panels {
            for panel in panels {
                product.panel(s, (0, product.rows), panel, &mut sums, self.out);
            }
        }
        Lines::of_next(self.next, &self.panels).prefetch(s);
    }
}

/// Some rows of some panels.
struct Chunk<'a> {
    product: Product<'a>,
    rows: (usize, usize),
    panels: (usize, usize),
    out: (SharedSlice<'a, f32>, Place),
}

impl Kernel for Chunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sums = TileSums::new();
        for panel in self.panels.0..self.panels.1 {
            self.product.panel(s, self.rows, panel, &mut sums, self.out);
        }
    }
}

#[cfg(test)]
mod tests;
