//! Products of query rows and panels: scores and weighted sums of values.

use std::ops::Range;

use super::pages::PIECE;
use super::rows::{Shape, state_stride};
use crate::BLOCK_TOKENS;
use crate::cpu::gemm::{PANEL, Panel, Rows, Sums, multiply_tile};
use crate::cpu::simd::{Kernel, Simd};

/// The query rows of one KV head.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) shape: Shape,
    /// The first of them.
    pub(super) first: usize,
}

impl Part {
    /// Those of head `h` of a unit.
    pub(super) fn of_head(shape: Shape, h: usize) -> Self {
        Self {
            shape,
            first: h * shape.rows,
        }
    }

    pub(super) fn rows(self) -> Range<usize> {
        self.first..self.first + self.shape.rows
    }
}

/// Scores of one head's rows, `queries`, against a piece of keys: `scores` are `[rows][128]`.
///
/// # Safety
/// There are as many queries as scores, and the panel has a row for each of a query's elements.
#[inline(always)]
pub(super) unsafe fn score<S: Simd, P: Panel>(
    s: S,
    part: Part,
    piece: usize,
    (queries, panel): (Rows, P),
    scores: &mut [f32],
    visible: impl Fn(usize) -> usize,
) {
    for (start, end) in tiles::<S>(part.shape.rows, piece * PIECE, &visible) {
        let (start, end) = (part.first + start, part.first + end);
        let queries = Rows {
            start: queries.start.wrapping_add(start * queries.stride),
            ..queries
        };
        let sums = &mut scores[start * BLOCK_TOKENS..end * BLOCK_TOKENS];
        let sums = Sums {
            start: sums[piece * PIECE..].as_mut_ptr(),
            stride: BLOCK_TOKENS,
            add: false,
        };
        // SAFETY: the slice holds `end - start` rows; the caller's promise.
        unsafe { multiply(s, end - start, queries, panel, sums) };
    }
}

/// Adds one head's weights times the values of some tokens, given as the panels of 32 channels
/// each. `scores` are `[rows][128]`, `block` `[rows][stride]`.
///
/// # Safety
/// The panels have a row for each of the tokens.
#[inline(always)]
pub(super) unsafe fn weigh<S: Simd, P: Panel>(
    s: S,
    part: Part,
    tokens: Range<usize>,
    panel: impl Fn(usize) -> P,
    (scores, block): (&[f32], &mut [f32]),
    visible: impl Fn(usize) -> usize,
) {
    let dim = part.shape.head_dim;
    let stride = state_stride(dim);
    for (start, end) in tiles::<S>(part.shape.rows, tokens.start, &visible) {
        let longest = visible(end - 1);
        let (start, end) = (part.first + start, part.first + end);
        let weights = &scores[start * BLOCK_TOKENS..end * BLOCK_TOKENS];
        let weights = Rows {
            start: weights[tokens.start..].as_ptr(),
            stride: BLOCK_TOKENS,
            k: tokens.end.min(longest) - tokens.start,
        };
        let block = &mut block[start * stride..end * stride];
        for i in 0..dim.div_ceil(PANEL) {
            let sums = Sums {
                start: block[i * PANEL..].as_mut_ptr(),
                stride,
                add: tokens.start > 0,
            };
            // SAFETY: the slices hold `end - start` rows of each; the caller's promise.
            unsafe { multiply(s, end - start, weights, panel(i), sums) };
        }
    }
}

/// [`multiply_tile`], out of line by number of rows.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn multiply<S: Simd, P: Panel>(s: S, rows: usize, a: Rows, panel: P, sums: Sums) {
    struct Tile<P, const R: usize>(Rows, P, Sums);
    impl<P: Panel, const R: usize> Kernel for Tile<P, R> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Self(a, panel, sums) = self;
            // SAFETY: the caller's promise.
            unsafe { multiply_tile(s, R, a, panel, sums) };
        }
    }
    macro_rules! by_rows {
        ($($r:literal)*) => {
            match rows {
                $($r => s.outline(Tile::<P, $r>(a, panel, sums)),)*
                _ => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
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
