//! Clipped 2-bit codes: a group's zero and range are chosen within those of its 4-bit codes, which
//! saturate.
//!
//! A window is four equidistant levels, in halves of a 4-bit step: 30 are what the group spans. The
//! one of the least squared error over the group's 4-bit codes is found in integers, from how often
//! each of them occurs.

use half::f16;

use super::RecordShape;
use super::affine::fp16::round_nearest;
use super::affine::{Grouping, MAX_GROUPS, Meta};
use super::simd::vectorised;
use crate::kv::Side;

/// Half steps of 4 bit that a group spans.
const SPAN: u8 = 30;
/// Steps of the windows, in half steps of 4 bit: the widest is the group's own range.
const WIDEST: u8 = SPAN / 3;
const NARROWEST_OF_KEYS: u8 = 8;
const NARROWEST_OF_VALUES: u8 = 9;

/// Levels at `low + step * k`, k = 0..=3.
#[derive(Clone, Copy)]
struct Window {
    low: u8,
    step: u8,
    /// By 4-bit code: squared distance to the nearest level, 36 at most.
    errors: [u16; 16],
    /// By 4-bit code, four bits each: the nearest level, the upper one of two.
    codes: u64,
}

/// How many there are down to a step.
const fn count(narrowest: u8) -> usize {
    let (mut count, mut step) = (0, WIDEST);
    while step >= narrowest {
        count += (SPAN - 3 * step) as usize + 1;
        step -= 1;
    }
    count
}

/// Wider ones first, then lower ones: of equals the first is taken.
static WINDOWS: [Window; count(NARROWEST_OF_KEYS)] = {
    let mut windows = [window(0, WIDEST); _];
    let (mut at, mut step) = (0, WIDEST);
    while step >= NARROWEST_OF_KEYS {
        let mut low = 0;
        while low + 3 * step <= SPAN {
            windows[at] = window(low, step);
            at += 1;
            low += 1;
        }
        step -= 1;
    }
    windows
};

/// What a side may choose from.
fn windows(side: Side) -> &'static [Window] {
    match side {
        Side::K => &WINDOWS,
        Side::V => &WINDOWS[..count(NARROWEST_OF_VALUES)],
    }
}

const fn window(low: u8, step: u8) -> Window {
    let (mut errors, mut codes) = ([0; 16], 0);
    let mut code = 0;
    while code < 16 {
        let above = 2 * code as i32 - low as i32;
        let level = match above {
            ..0 => 0,
            _ => (2 * above + step as i32) / (2 * step as i32),
        };
        let level = if level > 3 { 3 } else { level };
        let distance = above - level * step as i32;
        errors[code] = (distance * distance) as u16;
        codes |= (level as u64) << (4 * code);
        code += 1;
    }
    Window {
        low,
        step,
        errors,
        codes,
    }
}

impl Window {
    /// Zero and range of the window in a group of these: one f32 rounding an operation, then the
    /// nearest fp16.
    fn place(&self, zero: f32, range: f32) -> (f16, f16) {
        let half_step = range / f32::from(SPAN);
        let low = zero + f32::from(self.low) * half_step;
        let width = f32::from(3 * self.step) * half_step;
        (round_nearest(low), round_nearest(width))
    }
}

/// Brings the groups that `chosen` names from 4-bit codes to clipped 2-bit ones: `codes`,
/// `[128][head_dim]`, and their zeros and ranges in `meta`.
pub(crate) fn clip(
    shape: RecordShape,
    chosen: impl Fn(usize) -> bool,
    meta: &mut [u8],
    codes: &mut [u8],
) {
    let groups = Grouping::of_side(shape.side).groups(shape);
    let mut counts = [[0; MAX_GROUPS]; 16];
    count_codes(shape, codes, &mut counts);
    let mut best = [0; MAX_GROUPS];
    choose(windows(shape.side), groups, &counts, &mut best);
    let mut levels = [THE_SAME; MAX_GROUPS];
    for group in (0..groups).filter(|g| chosen(*g)) {
        let window = &WINDOWS[usize::from(best[group])];
        levels[group] = window.codes;
        let old = Meta::of(meta, groups);
        let (zero, range) = window.place(old.zero(group).to_f32(), old.range(group).to_f32());
        Meta::store(meta, groups, group, zero, range);
    }
    map_codes(shape, &levels[..groups], codes);
}

vectorised! {
    /// How often each code occurs in each group: `counts[code][group]`.
    fn count_codes(shape: RecordShape, codes: &[u8], counts: &mut [[u16; MAX_GROUPS]; 16]) {
        for (code, counts) in counts.iter_mut().enumerate() {
            let found = |c: &u8| u16::from(*c == code as u8);
            let rows = codes.chunks_exact(shape.head_dim);
            match shape.side {
                Side::K => rows.for_each(|row| {
                    let counts = counts.iter_mut().zip(row);
                    counts.for_each(|(count, c)| *count = count.wrapping_add(found(c)));
                }),
                Side::V => rows.zip(counts).for_each(|(row, count)| {
                    *count = row.iter().map(found).sum();
                }),
            }
        }
    }
}

vectorised! {
    /// The window of the least squared error of each group; sums are 256 · 36 at most.
    fn choose(
        windows: &[Window],
        groups: usize,
        counts: &[[u16; MAX_GROUPS]; 16],
        best: &mut [u8; MAX_GROUPS],
    ) {
        const LANES: usize = 32;
        for first in (0..groups).step_by(LANES) {
            let (mut least, mut best_here) = ([u16::MAX; LANES], [0u16; LANES]);
            for (index, window) in windows.iter().enumerate() {
                let mut sums = [0u16; LANES];
                for (counts, error) in counts.iter().zip(&window.errors) {
                    for (sum, count) in sums.iter_mut().zip(&counts[first..first + LANES]) {
                        *sum = sum.wrapping_add(count.wrapping_mul(*error));
                    }
                }
                for ((least, best), sum) in least.iter_mut().zip(&mut best_here).zip(sums) {
                    *best = if sum < *least { index as u16 } else { *best };
                    *least = if sum < *least { sum } else { *least };
                }
            }
            for (best, here) in best[first..first + LANES].iter_mut().zip(best_here) {
                *best = here as u8;
            }
        }
    }
}

/// What each code becomes in a group that is not chosen.
const THE_SAME: u64 = 0xfedc_ba98_7654_3210;

#[inline(always)]
fn level(levels: u64, code: u8) -> u8 {
    (levels >> (4 * (code & 15)) & 15) as u8
}

vectorised! {
    fn map_codes(shape: RecordShape, levels: &[u64], codes: &mut [u8]) {
        let rows = codes.chunks_exact_mut(shape.head_dim);
        match shape.side {
            Side::K => rows.for_each(|row| {
                let codes = row.iter_mut().zip(levels);
                codes.for_each(|(code, levels)| *code = level(*levels, *code));
            }),
            Side::V => rows.zip(levels).for_each(|(row, levels)| {
                row.iter_mut().for_each(|code| *code = level(*levels, *code));
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ladder::shift_4_to_2;
    use super::*;

    /// The first window is the group's own range: its codes are those of the Equivalent Right
    /// Shift, its zero and range the old ones.
    #[test]
    fn the_widest_window_changes_nothing() {
        let widest = &WINDOWS[0];
        for code in 0..16u8 {
            assert_eq!(level(widest.codes, code), shift_4_to_2(code));
        }
        for range in (0..0x7c00).map(f16::from_bits) {
            let (zero, same) = widest.place(-2.75, range.to_f32());
            assert_eq!((zero.to_f32(), same), (-2.75, range));
        }
    }

    #[test]
    fn windows_differ_and_lie_within_the_group() {
        assert_eq!([Side::K, Side::V].map(|s| windows(s).len()), [12, 5]);
        for (index, window) in WINDOWS.iter().enumerate() {
            assert!(window.low + 3 * window.step <= SPAN && window.step >= NARROWEST_OF_KEYS);
            assert!(window.errors.iter().all(|e| *e <= 36));
            let same = |w: &Window| (w.low, w.step) == (window.low, window.step);
            assert!(!WINDOWS[..index].iter().any(same));
        }
        assert_eq!(
            windows(Side::V).last().map(|w| w.step),
            Some(NARROWEST_OF_VALUES)
        );
    }

    /// Codes that lie on four levels of a window are kept exactly.
    #[test]
    fn codes_on_four_levels_lose_nothing() {
        for (first, step) in [(0, 5), (0, 4), (1, 4), (3, 4)] {
            let shape = RecordShape::k(16);
            let mut meta = vec![0; 64];
            for group in 0..16 {
                Meta::store(
                    &mut meta,
                    16,
                    group,
                    f16::from_f32(10.0),
                    f16::from_f32(15.0),
                );
            }
            let mut codes: Vec<u8> = (0..128 * 16)
                .map(|i| first + step * (i / 16 % 4) as u8)
                .collect();
            let old: Vec<f32> = codes.iter().map(|c| 10.0 + f32::from(*c)).collect();
            clip(shape, |group| group != 5, &mut meta, &mut codes);
            let found = Meta::of(&meta, 16);
            for (i, (code, old)) in codes.iter().zip(old).enumerate() {
                let (zero, range) = (found.zero(i % 16).to_f32(), found.range(i % 16).to_f32());
                let levels = if i % 16 == 5 { 15.0 } else { 3.0 };
                assert_eq!(zero + f32::from(*code) * range / levels, old);
            }
        }
    }
}
