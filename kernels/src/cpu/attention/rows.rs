//! Query rows against one block of keys and values, and the sum over blocks.
//!
//! A row's result over a block is `(o, m, l)`: `Σ exp(score - m) v`, the largest score `m`, and
//! `Σ exp(score - m)`. Blocks are merged in order of position, each step rescaling both sides to
//! the larger maximum (online softmax). What is computed for a row depends on its position and the
//! pages only, never on the rows beside it.

use super::pages::{HeadPage, Item, PIECE, Pages, key_floats, value_floats};
use crate::BLOCK_TOKENS;
use crate::cpu::floats::Floats;
use crate::cpu::gemm::{F32Panel, PANEL, Rows, Sums, multiply_tile};
use crate::cpu::math;
use crate::cpu::simd::Simd;
use crate::kv::Side;

/// Query rows (rows of the step times query heads) that share the reading of a block.
pub(super) const MAX_ROWS: usize = 96;

/// What one thread needs to attend.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// A piece of one head's keys, and one of its values.
    keys: Floats,
    values: Floats,
    /// `[32][head_dim]`: a piece of a shrunk block, decoded.
    decoded: Floats,
    /// `[rows][head_dim]`, scaled by 1 / sqrt(head_dim).
    pub(super) queries: Floats,
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

impl Scratch {
    /// Scratch for `head_dim` channels and at most `rows` query rows.
    pub(crate) fn new(head_dim: usize, rows: usize) -> Self {
        let stride = state_stride(head_dim);
        Self {
            keys: Floats::zeros(key_floats(head_dim)),
            // The columns that pad the last panel stay zero for ever.
            values: Floats::zeros(value_floats(head_dim)),
            decoded: Floats::zeros(PIECE * head_dim),
            queries: Floats::zeros(rows * head_dim),
            scores: Floats::zeros(rows * BLOCK_TOKENS),
            block: Floats::zeros(rows * stride),
            state: Floats::zeros(rows * stride),
        }
    }

    /// Attends to the first `tokens` tokens of a block, from the page's head on. Row `i` of each
    /// head sees `visible(i)` of them, which does not decrease with `i`. `sink(state, row, (o, m,
    /// l))` receives the results of the rows that see any, with the running state of that row.
    /// `next` are the block and tokens that will be attended to next, if any.
    #[inline(always)]
    #[allow(
        clippy::too_many_arguments,
        reason = "two closures and what they are about"
    )]
    pub(super) fn attend<S: Simd>(
        &mut self,
        s: S,
        shape: Shape,
        pages: &Pages<'_>,
        page: HeadPage,
        tokens: usize,
        next: Option<(u32, usize)>,
        visible: impl Fn(usize) -> usize + Copy,
    ) {
        let pieces = tokens.div_ceil(PIECE);
        let nothing = [self.keys.as_ptr().cast(); 2];
        let next = next.map(|(block, tokens)| (block, Item::new(Side::K, 0, tokens)));
        for i in 0..2 * pieces {
            let item = |i: usize| match i.checked_sub(pieces) {
                None => Item::new(Side::K, i, tokens),
                Some(i) => Item::new(Side::V, i, tokens),
            };
            let ahead = match i + 1 {
                i if i < 2 * pieces => Some((page.block, item(i))),
                _ => next,
            };
            if i == pieces {
                self.softmax(s, shape, visible);
            }
            // The heads of an item lie side by side in memory, so they are the inner loop.
            for h in 0..shape.kv_heads {
                let kv_head = page.kv_head + h;
                let page = HeadPage { kv_head, ..page };
                let ahead = ahead.map_or(nothing, |(block, item)| {
                    pages.runs(HeadPage { block, ..page }, item)
                });
                let rows = Part {
                    shape,
                    first: h * shape.rows,
                    ahead,
                };
                let item = item(i);
                match item.side {
                    Side::K => {
                        let out = &mut self.keys[..key_floats(shape.head_dim)];
                        pages.read(s, page, item, &mut self.decoded, out);
                        self.scores(s, rows, item.piece, visible);
                    }
                    Side::V => {
                        let out = &mut self.values[..value_floats(shape.head_dim)];
                        pages.read(s, page, item, &mut self.decoded, out);
                        self.weigh(s, rows, item.piece, visible);
                    }
                }
            }
        }
    }

    /// Scores of one head's rows against the piece of keys read last.
    #[inline(always)]
    fn scores<S: Simd>(
        &mut self,
        s: S,
        part: Part,
        piece: usize,
        visible: impl Fn(usize) -> usize,
    ) {
        let dim = part.shape.head_dim;
        let panel = F32Panel {
            start: self.keys[..key_floats(dim)].as_ptr(),
            runs: part.ahead,
            run: dim / 2,
            skip: 0,
        };
        for (start, end) in tiles::<S>(part.shape.rows, piece * PIECE, &visible) {
            let (start, end) = (part.first + start, part.first + end);
            let queries = Rows {
                start: self.queries[start * dim..end * dim].as_ptr(),
                stride: dim,
                k: dim,
            };
            let sums = &mut self.scores[start * BLOCK_TOKENS..end * BLOCK_TOKENS];
            let sums = Sums {
                start: sums[piece * PIECE..].as_mut_ptr(),
                stride: BLOCK_TOKENS,
                add: false,
            };
            // SAFETY: the slices hold `end - start` rows of each, and a panel of `dim` rows.
            unsafe { multiply_tile(s, end - start, queries, panel, sums) };
        }
    }

    /// Turns all rows' scores into probabilities, up to a factor.
    #[inline(always)]
    fn softmax<S: Simd>(&mut self, s: S, shape: Shape, visible: impl Fn(usize) -> usize) {
        let stride = state_stride(shape.head_dim);
        for row in 0..shape.kv_heads * shape.rows {
            let seen = visible(row % shape.rows);
            if seen > 0 {
                let columns = seen.next_multiple_of(PANEL);
                let scores = &mut self.scores[row * BLOCK_TOKENS..][..columns];
                let (m, l) = softmax(s, scores, seen);
                self.block[(row + 1) * stride - 16] = m;
                self.block[(row + 1) * stride - 15] = l;
            }
        }
    }

    /// Adds one head's probabilities times the piece of values read last.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, s: S, part: Part, piece: usize, visible: impl Fn(usize) -> usize) {
        let stride = state_stride(part.shape.head_dim);
        for (start, end) in tiles::<S>(part.shape.rows, piece * PIECE, &visible) {
            let longest = visible(end - 1);
            let (start, end) = (part.first + start, part.first + end);
            let weights = &self.scores[start * BLOCK_TOKENS..end * BLOCK_TOKENS];
            let weights = Rows {
                start: weights[piece * PIECE..].as_ptr(),
                stride: BLOCK_TOKENS,
                k: PIECE.min(longest - piece * PIECE),
            };
            let block = &mut self.block[start * stride..end * stride];
            let values = &self.values[..value_floats(part.shape.head_dim)];
            for (i, panel) in values.chunks_exact(PIECE * PANEL).enumerate() {
                let sums = Sums {
                    start: block[i * PANEL..].as_mut_ptr(),
                    stride,
                    add: piece > 0,
                };
                let panel = F32Panel {
                    start: panel.as_ptr(),
                    runs: part.ahead,
                    run: part.shape.head_dim / 2,
                    skip: i * PIECE,
                };
                // SAFETY: the slices hold `end - start` rows of each, and a panel of 32 rows.
                unsafe { multiply_tile(s, end - start, weights, panel, sums) };
            }
        }
    }
}

/// The rows of one KV head, and what to prefetch while they are multiplied.
#[derive(Clone, Copy)]
struct Part {
    shape: Shape,
    /// The first of them.
    first: usize,
    ahead: [*const u8; 2],
}

/// Even tiles, `(first, end)`, of those of `rows` rows that see more than `tokens` tokens.
#[inline(always)]
fn tiles<S: Simd>(
    rows: usize,
    tokens: usize,
    visible: impl Fn(usize) -> usize,
) -> impl Iterator<Item = (usize, usize)> {
    let first = (0..rows).find(|i| visible(*i) > tokens).unwrap_or(rows);
    let rows = rows - first;
    let tiles = rows.div_ceil(S::TILE_ROWS);
    (0..tiles).map(move |t| (first + t * rows / tiles, first + (t + 1) * rows / tiles))
}

/// Turns the first `visible` scores into `exp(score - max)` and the rest into zeros; returns the
/// maximum and the sum. Zeros change neither the sum nor the product with the values.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], visible: usize) -> (f32, f32) {
    debug_assert!(scores.len().is_multiple_of(PANEL));
    scores[visible..].fill(f32::NEG_INFINITY);
    let top = math::max(s, scores);
    let shift = s.splat(top);
    for chunk in scores.chunks_exact_mut(S::LANES) {
        // SAFETY: a chunk of `LANES`.
        unsafe {
            let x = s.sub(s.load(chunk.as_ptr()), shift);
            s.store(chunk.as_mut_ptr(), math::exp(s, x));
        }
    }
    scores[visible..].fill(0.0);
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

/// Writes `o / l`, the attention of one query row.
#[inline(always)]
pub(super) fn finish(state: &[f32], out: &mut [f32]) {
    let l = state[state.len() - 15];
    for (out, o) in out.iter_mut().zip(state) {
        // Adding zero turns -0, which depends on how many masked zeros were added, into +0.
        *out = o / l + 0.0;
    }
}
