//! Query rows against one block of keys and values, and the sum over blocks.
//!
//! A row's result over a block is `(o, m, l)`: `Σ exp(score - m) v`, the largest score `m`, and
//! `Σ exp(score - m)`. Blocks are merged in order of position, each step rescaling both sides to
//! the larger maximum (online softmax). What is computed for a row depends on its position and the
//! pages only, never on the rows beside it.

use std::ops::Range;

use super::codes::{Record, most_columns};
use super::pages::{HeadPage, Item, PIECE, Pages, key_floats, value_floats};
use super::products::{Part, score, weigh};
use crate::BLOCK_TOKENS;
use crate::cpu::floats::Floats;
use crate::cpu::gemm::{F32Panel, PANEL, Rows};
use crate::cpu::math;
use crate::cpu::simd::Simd;
use crate::kv::Side;
use crate::model::KvPlace;

/// Query rows (rows of the step times query heads) that share the reading of a block.
pub(super) const MAX_ROWS: usize = 96;

/// What one thread needs to attend.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// A piece of one head's keys, and one of its values.
    keys: Floats,
    values: Floats,
    /// `[32][head_dim]`: a piece of a shrunk block, dequantised.
    dequantised: Floats,
    /// `[rows][head_dim]`, scaled by 1 / sqrt(head_dim).
    pub(super) queries: Floats,
    /// The record of a shrunk block whose codes are computed on, and its bytes if they lie apart.
    record: Record,
    joined: Vec<u8>,
    /// `[rows][most_columns]`: what a record of keys makes of the queries.
    folded: Floats,
    /// `[rows]`: what every score of the block lacks, then every channel.
    lacking: Floats,
    /// `[rows][128]` scores, then probabilities.
    scores: Floats,
    /// `[rows][stride]`: `(o, m, l)` of the block at hand.
    pub(super) block: Floats,
    /// `[rows][stride]`: the running `(o, m, l)`.
    pub(super) state: Floats,
}

/// Floats of `(o, m, l)`: channels padded to whole panels, then the two scalars in a line.
pub(super) fn state_stride(head_dim: usize) -> usize {
    width(head_dim) + 16
}

/// Channels padded to whole panels.
fn width(head_dim: usize) -> usize {
    head_dim.next_multiple_of(PANEL)
}

/// The query rows of some KV heads: those of the first head, then those of the next.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) head_dim: usize,
    pub(super) kv_heads: usize,
    /// Query rows of each KV head.
    pub(super) rows: usize,
}

/// What is seen of a block.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) pages: &'a Pages<'a>,
    /// The block, by its number in the tables.
    pub(super) block: u32,
    /// Where the layer's keys and values lie.
    pub(super) place: KvPlace,
    /// The unit's first KV head.
    pub(super) first_head: usize,
    /// Its first tokens, as many as anybody sees.
    pub(super) tokens: usize,
    /// The block and the tokens that will be attended to next, if any.
    pub(super) next: Option<(u32, usize)>,
}

impl Block<'_> {
    fn pieces(&self) -> usize {
        self.tokens.div_ceil(PIECE)
    }

    fn page(&self, h: usize, part: usize) -> HeadPage {
        let (layer, record) = self.place.record(self.first_head + h, part);
        HeadPage {
            block: self.block,
            layer,
            record,
        }
    }

    /// Whether products may be computed on codes: of heads that are one record, all of one format.
    /// What others in the step ask for must not decide it.
    fn may_have_codes(&self) -> bool {
        self.place.is_whole()
    }

    /// Reads an item of a head, part by part, to `out`: the channels of a part follow those of the
    /// part before, in rows of keys and in panels of values.
    #[inline(always)]
    fn read<S: Simd>(&self, s: S, h: usize, item: Item, dequantised: &mut [f32], out: &mut [f32]) {
        let parts = self.place.parts();
        let floats = out.len() / parts;
        for (part, out) in out.chunks_exact_mut(floats).enumerate() {
            self.pages
                .read(s, self.page(h, part), item, dequantised, out);
        }
    }

    /// Where the item of a head lies that follows one, see [`Pages::runs`]; nowhere if it lies in
    /// parts.
    #[inline(always)]
    fn runs_after(&self, h: usize, item: Item) -> Option<[*const u8; 2]> {
        if self.place.parts() > 1 {
            return None;
        }
        let (block, tokens, side, piece) = match (item.piece + 1 < self.pieces(), item.side) {
            (true, side) => (self.block, self.tokens, side, item.piece + 1),
            (false, Side::K) => (self.block, self.tokens, Side::V, 0),
            (false, Side::V) => {
                let (block, tokens) = self.next?;
                (block, tokens, Side::K, 0)
            }
        };
        let page = HeadPage {
            block,
            ..self.page(h, 0)
        };
        Some(self.pages.runs(page, Item::new(side, piece, tokens)))
    }

    /// Where the record starts that follows one: the next head's, the other side's, or of the next
    /// block; its own if there is none.
    #[inline(always)]
    fn record_after(&self, h: usize, shape: Shape, side: Side) -> *const u8 {
        let last = Item::new(side, self.pieces() - 1, self.tokens);
        let start = |page, side| self.pages.runs(page, Item::new(side, 0, self.tokens))[0];
        if h + 1 < shape.kv_heads {
            return start(self.page(h + 1, 0), side);
        }
        let after = self.runs_after(0, last).map(|runs| runs[0]);
        after.unwrap_or_else(|| start(self.page(h, 0), side))
    }
}

impl Scratch {
    /// Scratch for heads of at most `head_dim` channels, in records of `record_dim`, and at most
    /// `rows` query rows.
    pub(crate) fn new(head_dim: usize, record_dim: usize, rows: usize) -> Self {
        let stride = state_stride(head_dim);
        Self {
            keys: Floats::zeros(key_floats(head_dim)),
            // The columns that pad the last panel stay zero for ever.
            values: Floats::zeros(value_floats(head_dim)),
            dequantised: Floats::zeros(PIECE * record_dim),
            record: Record::new(record_dim),
            joined: Vec::new(),
            folded: Floats::zeros(rows * most_columns(head_dim)),
            lacking: Floats::zeros(rows),
            queries: Floats::zeros(rows * head_dim),
            scores: Floats::zeros(rows * BLOCK_TOKENS),
            block: Floats::zeros(rows * stride),
            state: Floats::zeros(rows * stride),
        }
    }

    /// Attends to what is seen of a block. Row `i` of each head sees the tokens `seen(i)` of it,
    /// neither end of which decreases with `i`. The results of the rows that see any are in `block`
    /// then.
    #[inline(always)]
    pub(super) fn attend<S: Simd>(
        &mut self,
        s: S,
        shape: Shape,
        block: Block<'_>,
        soft_cap: Option<f32>,
        seen: impl Fn(usize) -> Range<usize> + Copy,
    ) {
        let visible = move |i: usize| seen(i).end;
        let codes = block.may_have_codes();
        if !(codes && self.score_codes(s, shape, block, visible)) {
            self.score_keys(s, shape, block, visible);
        }
        self.softmax(s, shape, soft_cap, seen);
        if !(codes && self.weigh_codes(s, shape, block, visible)) {
            self.weigh_values(s, shape, block, visible);
        }
    }

    /// Scores of keys that are read as they are, or dequantised.
    #[inline(always)]
    fn score_keys<S: Simd>(
        &mut self,
        s: S,
        shape: Shape,
        block: Block<'_>,
        visible: impl Fn(usize) -> usize,
    ) {
        let dim = shape.head_dim;
        self.lacking.fill(0.0);
        for piece in 0..block.pieces() {
            // The heads of an item lie side by side in memory, so they are the inner loop.
            for h in 0..shape.kv_heads {
                let keys = &mut self.keys[..key_floats(dim)];
                let item = Item::new(Side::K, piece, block.tokens);
                let ahead = block.runs_after(h, item);
                block.read(s, h, item, &mut self.dequantised, keys);
                let panel = F32Panel {
                    start: keys.as_ptr(),
                    runs: ahead.unwrap_or([keys.as_ptr().cast(); 2]),
                    run: dim / 2,
                    skip: 0,
                };
                let queries = Rows {
                    start: self.queries.as_ptr(),
                    stride: dim,
                    k: dim,
                };
                let (part, scores) = (Part::of_head(shape, h), &mut self.scores);
                // SAFETY: queries are `[rows][dim]`, and the panel has `dim` rows.
                unsafe { score(s, part, piece, (queries, panel), scores, &visible) };
            }
        }
    }

    /// Adds up values that are read as they are, or dequantised.
    #[inline(always)]
    fn weigh_values<S: Simd>(
        &mut self,
        s: S,
        shape: Shape,
        block: Block<'_>,
        visible: impl Fn(usize) -> usize,
    ) {
        let dim = shape.head_dim;
        for piece in 0..block.pieces() {
            for h in 0..shape.kv_heads {
                let values = &mut self.values[..value_floats(dim)];
                let item = Item::new(Side::V, piece, block.tokens);
                let ahead = block.runs_after(h, item);
                block.read(s, h, item, &mut self.dequantised, values);
                let panel = |i: usize| F32Panel {
                    start: values[i * PIECE * PANEL..][..PIECE * PANEL].as_ptr(),
                    runs: ahead.unwrap_or([values.as_ptr().cast(); 2]),
                    run: dim / 2,
                    skip: i * PIECE,
                };
                let rows = (&self.scores[..], &mut self.block[..]);
                let (part, tokens) = (Part::of_head(shape, h), piece * PIECE..(piece + 1) * PIECE);
                // SAFETY: panels of 32 rows.
                unsafe { weigh(s, part, tokens, panel, rows, &visible) };
            }
        }
    }

    /// Scores of keys whose codes are computed on; false if the page has none.
    #[inline(always)]
    fn score_codes<S: Simd>(
        &mut self,
        s: S,
        shape: Shape,
        block: Block<'_>,
        visible: impl Fn(usize) -> usize,
    ) -> bool {
        let (dim, stride) = (shape.head_dim, most_columns(shape.head_dim));
        for h in 0..shape.kv_heads {
            let part = Part::of_head(shape, h);
            let Some(codes) = block
                .pages
                .codes(block.page(h, 0), Side::K, &mut self.joined)
            else {
                return false;
            };
            self.record
                .take(s, &codes, block.record_after(h, shape, Side::K));
            for row in part.rows() {
                let query = &self.queries[row * dim..][..dim];
                let folded = &mut self.folded[row * stride..][..stride];
                self.lacking[row] = self.record.fold_query(s, query, folded);
            }
            let queries = Rows {
                start: self.folded.as_ptr(),
                stride,
                k: self.record.columns(),
            };
            for piece in 0..block.pieces() {
                let operands = (queries, self.record.keys(piece));
                // SAFETY: multiplicands are `[rows][stride]`; the panel has a row a column.
                unsafe { score(s, part, piece, operands, &mut self.scores, &visible) };
            }
        }
        true
    }

    /// Adds up values whose codes are computed on; false if the page has none.
    #[inline(always)]
    fn weigh_codes<S: Simd>(
        &mut self,
        s: S,
        shape: Shape,
        block: Block<'_>,
        visible: impl Fn(usize) -> usize,
    ) -> bool {
        let (dim, stride) = (shape.head_dim, state_stride(shape.head_dim));
        // Rows that see less than others have no weights beyond.
        let run = match visible(0) {
            BLOCK_TOKENS => BLOCK_TOKENS,
            _ => PIECE,
        };
        for h in 0..shape.kv_heads {
            let part = Part::of_head(shape, h);
            let Some(codes) = block
                .pages
                .codes(block.page(h, 0), Side::V, &mut self.joined)
            else {
                return false;
            };
            self.record
                .take(s, &codes, block.record_after(h, shape, Side::V));
            for (i, row) in part.rows().enumerate() {
                let seen = visible(i).next_multiple_of(PANEL);
                let weights = &mut self.scores[row * BLOCK_TOKENS..][..seen];
                self.lacking[row] = self.record.fold_weights(s, weights);
            }
            for first in (0..block.tokens).step_by(run) {
                let panel = |i: usize| self.record.values(first, i);
                let rows = (&self.scores[..], &mut self.block[..]);
                // SAFETY: the panels have a row a token of the block.
                unsafe { weigh(s, part, first..first + run, panel, rows, &visible) };
            }
            for (i, row) in part.rows().enumerate() {
                if visible(i) > 0 {
                    let o = &mut self.block[row * stride..][..dim];
                    o.iter_mut().for_each(|o| *o += self.lacking[row]);
                }
            }
        }
        true
    }

    /// Turns all rows' scores into probabilities, up to a factor.
    #[inline(always)]
    fn softmax<S: Simd>(
        &mut self,
        s: S,
        shape: Shape,
        soft_cap: Option<f32>,
        seen: impl Fn(usize) -> Range<usize>,
    ) {
        let stride = state_stride(shape.head_dim);
        for row in 0..shape.kv_heads * shape.rows {
            let seen = seen(row % shape.rows);
            if !seen.is_empty() {
                let columns = seen.end.next_multiple_of(PANEL);
                let scores = &mut self.scores[row * BLOCK_TOKENS..][..columns];
                if let Some(cap) = soft_cap {
                    cap_scores(s, scores, self.lacking[row], cap);
                    self.lacking[row] = 0.0;
                }
                let (m, l) = softmax(s, scores, seen);
                self.block[(row + 1) * stride - 16] = m + self.lacking[row];
                self.block[(row + 1) * stride - 15] = l;
            }
        }
    }
}

/// Adds what scores lack, and caps them.
#[inline(always)]
fn cap_scores<S: Simd>(s: S, scores: &mut [f32], lacking: f32, cap: f32) {
    for chunk in scores.chunks_exact_mut(S::LANES) {
        // SAFETY: a chunk of `LANES`.
        unsafe {
            let x = s.add(s.load(chunk.as_ptr()), s.splat(lacking));
            s.store(chunk.as_mut_ptr(), math::soft_cap(s, x, cap));
        }
    }
}

/// Turns the scores that are seen, at least one, into `exp(score - max)` and the rest into zeros;
/// returns the maximum and the sum. Zeros change neither the sum nor the product with the values.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], seen: Range<usize>) -> (f32, f32) {
    debug_assert!(scores.len().is_multiple_of(PANEL));
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let top = math::max(s, scores);
    let shift = s.splat(top);
    for chunk in scores.chunks_exact_mut(S::LANES) {
        // SAFETY: a chunk of `LANES`.
        unsafe {
            let x = s.sub(s.load(chunk.as_ptr()), shift);
            s.store(chunk.as_mut_ptr(), math::exp(s, x));
        }
    }
    scores[..seen.start].fill(0.0);
    scores[seen.end..].fill(0.0);
    (top, math::sum(s, scores))
}

/// Adds the result over the next block to the running one, both `(o, m, l)`.
#[inline(always)]
pub(super) fn merge<S: Simd>(s: S, state: &mut [f32], block: &[f32]) {
    let width = state.len() - 16;
    let (m, l) = (state[width], state[width + 1]);
    let (block_m, block_l) = (block[width], block[width + 1]);
    let top = if block_m > m { block_m } else { m };
    let old = math::exp(s, s.splat(m - top));
    let new = math::exp(s, s.splat(block_m - top));
    for c in (0..width).step_by(S::LANES) {
        // SAFETY: `width` is a multiple of 32 and both slices are longer.
        unsafe {
            let o = s.mul(s.load(state.as_ptr().add(c)), old);
            let o = s.fma(s.load(block.as_ptr().add(c)), new, o);
            s.store(state.as_mut_ptr().add(c), o);
        }
    }
    let sum = s.fma(s.splat(block_l), new, s.mul(s.splat(l), old));
    state[width] = top;
    state[width + 1] = s.first(sum);
}

/// Adds a score that has no value to a running result `(o, m, l)`.
#[inline(always)]
pub(super) fn add_sink<S: Simd>(s: S, state: &mut [f32], sink: f32) {
    let width = state.len() - 16;
    let (m, l) = (state[width], state[width + 1]);
    let top = if sink > m { sink } else { m };
    let old = math::exp(s, s.splat(m - top));
    let new = math::exp(s, s.splat(sink - top));
    for channels in state[..width].chunks_exact_mut(S::LANES) {
        // SAFETY: a chunk of `LANES`.
        unsafe {
            let o = s.mul(s.load(channels.as_ptr()), old);
            s.store(channels.as_mut_ptr(), o);
        }
    }
    state[width] = top;
    state[width + 1] = s.first(s.fma(s.splat(l), old, new));
}

/// Writes `o / l`, the attention of one query row.
#[inline(always)]
pub(super) fn finish(state: &[f32], out: &mut [f32]) {
    let l = state[state.len() - 15];
    for (out, o) in out.iter_mut().zip(state) {
        // Adding zero turns -0, which depends on how many masked zeros were added, into +0.
        *out = o / l + 0.0;
    }
}
