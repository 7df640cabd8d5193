//! The register tile: a few rows times a vector of outputs, over a stretch of blocks.

use super::activations::{Block, FINER, four};
use super::ahead::Ahead;
use super::floats::Float;
use super::stretch::BLOCK_CODES;
use super::{BLOCK, PANEL};
use crate::cpu::gemm::Sums;
use crate::cpu::simd::{DotKernel, DotSet, Dots, Simd};

/// The left operand: rows of blocks, `stride` apart, from the stretch's first block on.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) start: *const Block,
    pub(super) stride: usize,
}

/// The right operand: an unpacked stretch.
#[derive(Clone, Copy)]
pub(super) struct Right {
    /// `[blocks][input / 4][output][input % 4]`
    pub(super) codes: *const u8,
    /// `[units][output]`
    pub(super) scales: *const f32,
    /// Likewise; unset in formats without.
    pub(super) offsets: *const f32,
    pub(super) blocks: usize,
    /// The code of 0.
    pub(super) zero: u8,
    pub(super) has_offsets: bool,
    /// What is fetched with the first tile's blocks. (All at once it would be dropped.)
    pub(super) ahead: Option<Ahead>,
}

/// Adds the products of `rows` rows with 16 outputs to `sums`, or puts them there.
pub(super) struct Tiles {
    pub(super) rows: usize,
    pub(super) a: Rows,
    pub(super) right: Right,
    pub(super) sums: Sums,
}

impl Tiles {
    /// Runs all tiles.
    ///
    /// # Safety
    /// `a` and `sums` must hold `rows` rows, of which `a` has `right.blocks` blocks each, and
    /// `right` be an unpacked stretch.
    pub(super) unsafe fn run(self, dots: DotSet, unit: usize, is_wide: bool) {
        match (unit, is_wide) {
            (BLOCK, false) => dots.run(OfUnit::<BLOCK, false>(self)),
            (BLOCK, true) => dots.run(OfUnit::<BLOCK, true>(self)),
            (_, false) => dots.run(OfUnit::<{ BLOCK / 2 }, false>(self)),
            (_, true) => dots.run(OfUnit::<{ BLOCK / 2 }, true>(self)),
        }
    }
}

/// `UNIT` is 32, or 16 where groups end within blocks; `WIDE` says that codes above 127 occur.
struct OfUnit<const UNIT: usize, const WIDE: bool>(Tiles);

impl<const UNIT: usize, const WIDE: bool> DotKernel for OfUnit<UNIT, WIDE> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let Tiles {
            rows,
            a,
            right,
            sums,
        } = self.0;
        let mut first = 0;
        let mut right = right;
        while first < rows {
            let a = Rows {
                start: a.start.wrapping_add(first * a.stride),
                ..a
            };
            let sums = Sums {
                start: sums.start.wrapping_add(first * sums.stride),
                ..sums
            };
            for lane in (0..PANEL).step_by(D::Floats::LANES) {
                // SAFETY: the promise of `Tiles::run`; `lane` is below 16.
                unsafe {
                    match rows - first {
                        8.. if D::ROWS == 8 => tile::<D, UNIT, WIDE, 8>(d, a, right, sums, lane),
                        4.. => tile::<D, UNIT, WIDE, 4>(d, a, right, sums, lane),
                        2.. => tile::<D, UNIT, WIDE, 2>(d, a, right, sums, lane),
                        _ => tile::<D, UNIT, WIDE, 1>(d, a, right, sums, lane),
                    }
                }
                right.ahead = None;
            }
            first += match rows - first {
                8.. if D::ROWS == 8 => 8,
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
        }
    }
}

/// `acc + (254 · coarse + fine) · x · scale`: adds the dot products of a unit, with the scales of
/// its activations and of its weights.
#[inline(always)]
pub(super) fn add_unit<D: Dots>(
    d: D,
    acc: Float<D>,
    [coarse, fine]: [D::Ints; 2],
    x: f32,
    scale: Float<D>,
) -> Float<D> {
    let s = d.floats();
    let both = s.fma(d.to_float(coarse), s.splat(FINER as f32), d.to_float(fine));
    s.fma(s.mul(both, s.splat(x)), scale, acc)
}

/// # Safety
/// As for [`Tiles::run`], of `R` rows.
#[inline(always)]
unsafe fn tile<D: Dots, const UNIT: usize, const WIDE: bool, const R: usize>(
    d: D,
    a: Rows,
    mut right: Right,
    sums: Sums,
    lane: usize,
) {
    let s = d.floats();
    let place = |r: usize| sums.start.wrapping_add(r * sums.stride + lane);
    let mut acc = [s.splat(0.0); R];
    if sums.add {
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: row `r` of `sums`.
            *acc = unsafe { s.load(place(r)) };
        }
    }
    let (scales, offsets) = (right.scales, right.offsets);
    for unit in 0..right.blocks * (BLOCK / UNIT) {
        let block = unit * UNIT / BLOCK;
        // Of the block's three sums, and its first input.
        let (sum, first) = match UNIT {
            BLOCK => (2, 0),
            _ => (unit % 2, unit % 2 * UNIT),
        };
        let codes = right
            .codes
            .wrapping_add(block * BLOCK_CODES + first * PANEL + 4 * lane);
        if let (0, Some(ahead)) = (first, &mut right.ahead) {
            ahead.fetch(s);
        }
        let (mut coarse, mut fine) = ([d.splat(0); R], [d.splat(0); R]);
        for (r, (coarse, fine)) in coarse.iter_mut().zip(&mut fine).enumerate() {
            // SAFETY: row `r`, block within the stretch.
            let block = unsafe { &*a.start.wrapping_add(r * a.stride + block) };
            *coarse = d.splat(-i32::from(right.zero) * block.coarse_sums[sum]);
            *fine = d.splat(-i32::from(right.zero) * block.fine_sums[sum]);
        }
        for quad in 0..UNIT / 4 {
            // SAFETY: four inputs of the unit; the codes are those of the stretch.
            let weights = unsafe { d.load(codes.wrapping_add(4 * quad * PANEL)) };
            for (r, (coarse, fine)) in coarse.iter_mut().zip(&mut fine).enumerate() {
                // SAFETY: row `r`, block within the stretch.
                let block = unsafe { &*a.start.wrapping_add(r * a.stride + block) };
                let quad = first / 4 + quad;
                *coarse = d.dot::<WIDE>(*coarse, weights, four(&block.coarse, quad));
                *fine = d.dot::<WIDE>(*fine, weights, four(&block.fine, quad));
            }
        }
        // SAFETY: a unit of the stretch, 16 outputs.
        let scale = unsafe { s.load(scales.wrapping_add(unit * PANEL + lane)) };
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: row `r`, block within the stretch.
            let x = unsafe { (*a.start.wrapping_add(r * a.stride + block)).scale };
            *acc = add_unit(d, *acc, [coarse[r], fine[r]], x, scale);
        }
        if right.has_offsets {
            // SAFETY: as for the scales.
            let offset = unsafe { s.load(offsets.wrapping_add(unit * PANEL + lane)) };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: row `r`, block within the stretch.
                let x = unsafe { (*a.start.wrapping_add(r * a.stride + block)).sums[sum] };
                *acc = s.fma(s.splat(x), offset, *acc);
            }
        }
    }
    for (r, acc) in acc.iter().enumerate() {
        // SAFETY: row `r` of `sums`.
        unsafe { s.store(place(r), *acc) };
    }
}
