//! Products of activations with the packed tensors of a linear layer.

use std::mem::MaybeUninit;

use super::PANEL;
use super::activations::Activations;
use super::ahead::Ahead;
use super::floats::{FloatStretch, Floats};
use super::layout::{Kind, QuantisedMatrix};
use super::one_row::OneRow;
use super::parts::{Part, Weights, locate, needs_quantised};
use super::stretch::{BLOCKS, Stretch, unpack};
use super::tile::{Right, Rows, Tiles};
use crate::cpu::gemm::{Epilogue, PANEL as COLUMNS, Place, ROW_BLOCK, Sums, finish};
use crate::cpu::prefetch::{Lines, StartOfNext};
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{DotKernel, DotSet, Dots, Isa};
use crate::cpu::threads::{Items, Pool, TaskPanic};
use crate::model::Activation;

/// Bytes of weights that a task of a large product covers.
const CHUNK_BYTES: usize = 128 << 10;

/// A product to compute.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// Rows, m.
    pub rows: usize,
    /// `[m][inputs]`.
    pub a: &'a [f32],
    /// The same, quantised; unused where all weights are floats.
    pub quantised: &'a Activations,
    /// The weights, in order of their columns, of which no two parts share any.
    pub parts: &'a [Part],
    /// Columns of a row of the output.
    pub stride: usize,
    /// Whether sums are added to what is there; parts are plain then, without biases.
    pub add: bool,
    /// What opens gates.
    pub activation: Activation,
}

impl Product<'_> {
    /// Computes the parts' columns of `out[m][stride]`.
    ///
    /// Panics if a slice is too short or the parts do not fit each other or the output; returns an
    /// error if a worker panicked.
    pub fn run(&self, pool: &mut Pool, isa: Isa, out: &mut [f32]) -> Result<(), TaskPanic> {
        self.run_with(pool, DotSet::of(isa), out, None)
    }

    pub(crate) fn run_with(
        &self,
        pool: &mut Pool,
        dots: DotSet,
        out: &mut [f32],
        next: Option<StartOfNext<'_>>,
    ) -> Result<(), TaskPanic> {
        let m = self.rows;
        let pairs = self.pairs();
        if m == 0 || pairs == 0 {
            return Ok(());
        }
        self.check(out.len());
        let out = SharedSlice::new(out);
        let product = *self;
        let row_blocks = m.div_ceil(ROW_BLOCK);
        if row_blocks == 1 {
            return pool.run_shares(pairs, |pairs| {
                product.share(dots, pairs, out, next);
            });
        }
        let by_cache = self.pairs_per_chunk();
        let by_balance = (pairs * row_blocks / (pool.threads() * 16)).max(1);
        let chunk = by_cache.min(by_balance);
        pool.run(pairs.div_ceil(chunk) * row_blocks, |i, _| {
            let first = i / row_blocks * chunk;
            let block = i % row_blocks;
            let rows = (block * m / row_blocks, (block + 1) * m / row_blocks);
            product.chunk(dots, rows, (first, pairs.min(first + chunk)), out);
        })
    }

    /// Pairs of panels that a task of a large product covers.
    pub(crate) fn pairs_per_chunk(&self) -> usize {
        let matrices = self.parts.iter().flat_map(Part::matrices);
        let bytes: usize = matrices.map(QuantisedMatrix::len).sum();
        (CHUNK_BYTES / (bytes / self.pairs().max(1)).max(1)).max(1)
    }

    /// Pairs of panels of all parts.
    pub(crate) fn pairs(&self) -> usize {
        self.parts.iter().map(Part::pairs).sum()
    }

    /// Computes some rows, at most 96, of some pairs of panels on this thread, of a product that
    /// was checked. Concurrent calls with the same output have other rows, pairs or columns.
    pub(crate) fn chunk(
        &self,
        dots: DotSet,
        rows: (usize, usize),
        (first, end): (usize, usize),
        out: SharedSlice<'_, f32>,
    ) {
        let mut work = MaybeUninit::uninit();
        for pair in first..end {
            self.pair(dots, rows, pair, &mut work, out);
        }
    }

    /// Panics if a task would read or write what is not its own, or leave something out.
    pub(crate) fn check(&self, out: usize) {
        let (m, inputs) = (self.rows, self.parts[0].matrices()[0].inputs());
        let len = self.a.len();
        assert!(m <= len / inputs, "{len} activations < {m} x {inputs}");
        assert!(m <= out / self.stride.max(1), "{out} outputs < {m} rows");
        let mut free = 0;
        for part in self.parts {
            let (first, outputs) = (part.first, part.outputs());
            assert!(first >= free, "column {first} is of two parts");
            let room = self.stride.checked_sub(first);
            assert!(room >= Some(outputs), "too many columns");
            free = first + outputs;
            let matrices = part.matrices();
            let fits = |w: &QuantisedMatrix| w.inputs() == inputs && w.outputs() == outputs;
            assert!(matrices.iter().all(fits), "matrices of different sizes");
            let mut formats = matrices.iter().map(QuantisedMatrix::format);
            let joins = formats.all(|format| QuantisedMatrix::can_join(format, matrices[0].format));
            assert!(joins, "E4M3 and integers in one part");
            if let Some(bias) = &part.bias {
                assert!(
                    bias.len() >= outputs.next_multiple_of(COLUMNS),
                    "bias is not padded"
                );
                assert!(
                    matrices.len() == 1 && !self.add,
                    "a bias is for what is stored"
                );
            }
            assert!(
                matrices.len() == 1 || !self.add,
                "gate and up cannot be added"
            );
        }
    }

    /// What happens to the sums of a part.
    fn epilogue<'p>(&self, part: &'p Part) -> Epilogue<'p> {
        match (&part.weights, &part.bias) {
            (Weights::Plain(_), None) if self.add => Epilogue::Add,
            (Weights::Plain(_), None) => Epilogue::Store,
            (Weights::Plain(_), Some(bias)) if !self.add => Epilogue::Bias(bias),
            (Weights::Gated(_), None) if !self.add => Epilogue::Gated(self.activation),
            (_, _) => unreachable!("`check` refuses more than one of bias, gates and adding"),
        }
    }

    /// All rows of the pairs that one thread gets.
    fn share(
        &self,
        dots: DotSet,
        mut pairs: Items<'_>,
        out: SharedSlice<'_, f32>,
        next: Option<StartOfNext<'_>>,
    ) {
        // What other threads have just written, all at once instead of line by line when needed.
        dots.run(Fetch(self.input_lines()));
        let mut work = MaybeUninit::uninit();
        for pairs in &mut pairs {
            for pair in pairs {
                self.pair(dots, (0, self.rows), pair, &mut work, out);
            }
        }
        dots.run(Fetch(Lines::of_next(next, &pairs)));
    }

    /// The lines of the rows as they are multiplied: quantised, or as they are by floats alone.
    pub(super) fn input_lines(&self) -> Lines {
        let matrix = &self.parts[0].matrices()[0];
        match needs_quantised(self.parts) {
            true => Lines::of(self.quantised.rows(0, self.rows, matrix.layout.blocks())),
            false => Lines::of(&self.a[..self.rows * matrix.inputs()]),
        }
    }

    /// Computes rows `first..end`, at most 96, of one pair of panels.
    fn pair(
        &self,
        dots: DotSet,
        (first, end): (usize, usize),
        pair: usize,
        work: &mut MaybeUninit<Work>,
        out: SharedSlice<'_, f32>,
    ) {
        let (part, pair) = locate(self.parts, pair);
        let halves = part.pair(pair);
        let rows = end - first;
        assert!(rows <= ROW_BLOCK);
        let work = work.as_mut_ptr();
        // SAFETY: only places are computed.
        let (sums, stretch, expanded) = unsafe {
            let sums = (&raw mut (*work).sums).cast::<f32>();
            (sums, &raw mut (*work).stretch, &raw mut (*work).floats)
        };
        if halves[1].is_none() {
            // SAFETY: 96 rows of 32 sums.
            unsafe { sums.write_bytes(0, rows * COLUMNS) };
        }
        if part.matrices()[0].layout.kind == Kind::E4M3 {
            let inputs = part.matrices()[0].inputs();
            let product = Floats {
                a: &self.a[first * inputs..end * inputs],
                rows,
                halves,
                stretch: expanded,
                sums,
            };
            // SAFETY: `sums` has room for 96 rows.
            unsafe { product.run(dots) };
        } else {
            for (half, place) in halves.into_iter().enumerate() {
                if let Some(place) = place {
                    let sums = sums.wrapping_add(half * PANEL);
                    // SAFETY: `sums` has 96 rows of 32, of which a half has 16.
                    unsafe { self.ints(dots, (first, rows), place, stretch, sums) };
                }
            }
        }
        let (column, width) = (pair * part.width(), part.width());
        dots.run(Finish {
            epilogue: self.epilogue(part),
            // SAFETY: the sums were written above.
            sums: unsafe { std::slice::from_raw_parts(sums, rows * COLUMNS) },
            pair,
            out,
            place: Place {
                first: first * self.stride + part.first + column,
                stride: self.stride,
            },
            valid: width.min(part.outputs() - column),
        });
    }

    /// The sums of `rows` rows with a panel of integers, `sums[row][32]`, of which 16 are written.
    ///
    /// # Safety
    /// `sums` must have room for the rows, and `stretch` be writable.
    unsafe fn ints(
        &self,
        dots: DotSet,
        (first, rows): (usize, usize),
        (matrix, panel): (&QuantisedMatrix, usize),
        stretch: *mut Stretch,
        sums: *mut f32,
    ) {
        let (layout, panel) = (&matrix.layout, matrix.panel(panel));
        let Kind::Ints { zero, .. } = layout.kind else {
            unreachable!("floats have their own product");
        };
        let blocks = layout.blocks();
        let a = self.quantised.rows(first, rows, blocks);
        if rows == 1 {
            // SAFETY: the matrix's panel.
            unsafe { OneRow::run(dots, layout, panel, a, sums) };
            return;
        }
        // SAFETY: only places are computed.
        let (scales, offsets) = unsafe {
            let scales = (&raw const (*stretch).scales).cast::<f32>();
            (scales, (&raw const (*stretch).offsets).cast::<f32>())
        };
        // Stretches of about the same length: each costs something by itself.
        let length = blocks.div_ceil(blocks.div_ceil(BLOCKS));
        for start in (0..blocks).step_by(length) {
            let count = length.min(blocks - start);
            // SAFETY: the matrix's panel and blocks.
            let codes = unsafe { unpack(dots, layout, panel, (start, count), stretch) };
            let tiles = Tiles {
                rows,
                a: Rows {
                    start: a[start..].as_ptr(),
                    stride: blocks,
                },
                right: Right {
                    codes,
                    scales,
                    offsets,
                    blocks: count,
                    zero,
                    has_offsets: layout.has_offsets,
                    ahead: Some(Ahead::of(layout, panel, start)),
                },
                sums: Sums {
                    start: sums,
                    stride: COLUMNS,
                    add: start > 0,
                },
            };
            // SAFETY: `a` holds `rows` rows of `blocks`, `sums` as many of 32.
            unsafe { tiles.run(dots, layout.unit(), layout.kind.is_wide()) };
        }
    }
}

/// What a thread works on, in its L1 cache.
#[repr(C, align(64))]
struct Work {
    /// `[rows][32]`
    sums: [f32; ROW_BLOCK * COLUMNS],
    stretch: Stretch,
    floats: FloatStretch,
}

/// Asks for cache lines.
struct Fetch(Lines);

impl DotKernel for Fetch {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        self.0.prefetch(d.floats());
    }
}

/// Stores the sums of a pair.
struct Finish<'a> {
    epilogue: Epilogue<'a>,
    /// `[rows][32]`
    sums: &'a [f32],
    pair: usize,
    out: SharedSlice<'a, f32>,
    place: Place,
    /// Outputs of the pair.
    valid: usize,
}

impl DotKernel for Finish<'_> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        for (row, sums) in self.sums.chunks_exact(COLUMNS).enumerate() {
            let at = self.place.first + row * self.place.stride;
            // SAFETY: tasks cover disjoint rows and pairs, hence disjoint outputs.
            let out = unsafe { self.out.slice(at, self.valid) };
            finish(d.floats(), self.epilogue, sums, self.pair, out);
        }
    }
}
