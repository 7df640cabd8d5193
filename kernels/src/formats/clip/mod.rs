//! Clipped 2-bit codes: a group's zero and range are chosen within those of its 4-bit codes, which saturate.
//!
//! A window is four equidistant levels, in halves of a 4-bit step: of 30 that the group spans. The one of the least squared error
//! over the group's 4-bit codes is found in integers, from how often each of them occurs.

use half::f16;

use super::RecordShape;
use super::affine::fp16::round_nearest;
use super::affine::{Grouping, MAX_GROUPS, Meta};
use super::simd::vectorised;

/// Half steps of 4 bit that a group spans.
const SPAN: u8 = 30;
/// Of the widest window, which is the group's own range, and of the narrowest.
const STEPS: [u8; 2] = [10, 4];
const COUNT: usize = count();

/// Levels at `low + step * k`, k = 0..=3.
#[derive(Clone, Copy)]
struct Window {
    low: u8,
    step: u8,
    /// By 4-bit code: squared distance to the nearest level, 225 at most.
    errors: [u16; 16],
    /// By 4-bit code, two bits each: the nearest level, the upper one of two.
    codes: u32,
}

/// Whether no code is further than half of the span from the window.
const fn is_window(low: u8, step: u8) -> bool {
    let high = low + 3 * step;
    high <= SPAN && low <= SPAN / 2 && high >= SPAN / 2
}

const fn count() -> usize {
    let (mut count, mut step) = (0, STEPS[0]);
    while step >= STEPS[1] {
        let mut low = 0;
        while low <= SPAN / 2 {
            count += is_window(low, step) as usize;
            low += 1;
        }
        step -= 1;
    }
    count
}

/// Wider ones first, then lower ones: of equals the first is taken.
static WINDOWS: [Window; COUNT] = {
    let mut windows = [Window { low: 0, step: 0, errors: [0; 16], codes: 0 }; COUNT];
    let (mut at, mut step) = (0, STEPS[0]);
    while step >= STEPS[1] {
        let mut low = 0;
        while low <= SPAN / 2 {
            if is_window(low, step) {
                windows[at] = window(low, step);
                at += 1;
            }
            low += 1;
        }
        step -= 1;
    }
    windows
};

const fn window(low: u8, step: u8) -> Window {
    let (mut errors, mut codes) = ([0; 16], 0);
    let mut code = 0;
    while code < 16 {
        let above = 2 * code as i32 - low as i32;
        let mut level = if above < 0 { 0 } else { (2 * above + step as i32) / (2 * step as i32) };
        if level > 3 {
            level = 3;
        }
        let distance = above - level * step as i32;
        errors[code] = (distance * distance) as u16;
        codes |= (level as u32) << (2 * code);
        code += 1;
    }
    Window { low, step, errors, codes }
}

/// Brings the groups that `chosen` names from 4-bit codes to clipped 2-bit ones: `codes`, `[128][head_dim]`, and their zeros and
/// ranges in `meta`.
pub(crate) fn clip(shape: RecordShape, chosen: &[bool], meta: &mut [u8], codes: &mut [u8]) {
    let grouping = Grouping::of_side(shape.side);
    let groups = grouping.groups(shape);
    let mut counts = [[0; MAX_GROUPS]; 16];
    count_codes(grouping, shape.head_dim, codes, &mut counts);
    let mut best = [0; MAX_GROUPS];
    choose(groups, &counts, &mut best);
    let mut levels = [0; MAX_GROUPS];
    for group in (0..groups).filter(|g| chosen[*g]) {
        let window = &WINDOWS[usize::from(best[group])];
        levels[group] = window.codes;
        let old = Meta::of(meta, groups);
        let (zero, range) = (old.zero(group).to_f32(), old.range(group).to_f32());
        let (zero, range) = window.place(zero, range);
        Meta::store(meta, groups, group, zero, range);
    }
    match grouping {
        Grouping::Channel => map_channels(&levels[..groups], chosen, codes),
        Grouping::Token => {
            for (codes, levels) in codes.chunks_exact_mut(shape.head_dim).zip(&levels) {
                map_token(*levels, codes);
            }
        }
    }
}

impl Window {
    /// Zero and range of the window in a group of these: one f32 rounding an operation, then the nearest fp16.
    fn place(&self, zero: f32, range: f32) -> (f16, f16) {
        let half_step = range / f32::from(SPAN);
        let low = zero + f32::from(self.low) * half_step;
        (round_nearest(low), round_nearest(f32::from(3 * self.step) * half_step))
    }
}

vectorised! {
    /// How often each code occurs in each group: `counts[code][group]`.
    fn count_codes(grouping: Grouping, head_dim: usize, codes: &[u8], counts: &mut [[u16; MAX_GROUPS]; 16]) {
        for (code, counts) in counts.iter_mut().enumerate() {
            match grouping {
                Grouping::Channel => for row in codes.chunks_exact(head_dim) {
                    for (count, c) in counts.iter_mut().zip(row) {
                        *count = count.wrapping_add(u16::from(*c == code as u8));
                    }
                }
                Grouping::Token => for (count, row) in counts.iter_mut().zip(codes.chunks_exact(head_dim)) {
                    *count = row.iter().map(|c| u16::from(*c == code as u8)).sum();
                }
            }
        }
    }
}

vectorised! {
    /// The window of the least squared error of each group; at most 256 · 225.
    fn choose(groups: usize, counts: &[[u16; MAX_GROUPS]; 16], best: &mut [u8; MAX_GROUPS]) {
        const LANES: usize = 32;
        for first in (0..groups).step_by(LANES) {
            let mut least = [u16::MAX; LANES];
            let mut window = [0u16; LANES];
            for (index, candidate) in WINDOWS.iter().enumerate() {
                let mut sum = [0u16; LANES];
                for (counts, error) in counts.iter().zip(&candidate.errors) {
                    for (sum, count) in sum.iter_mut().zip(&counts[first..first + LANES]) {
                        *sum = sum.wrapping_add(count.wrapping_mul(*error));
                    }
                }
                for ((least, window), sum) in least.iter_mut().zip(&mut window).zip(sum) {
                    *window = if sum < *least { index as u16 } else { *window };
                    *least = if sum < *least { sum } else { *least };
                }
            }
            for (best, window) in best[first..first + LANES].iter_mut().zip(window) {
                *best = window as u8;
            }
        }
    }
}

vectorised! {
    fn map_channels(levels: &[u32], chosen: &[bool], codes: &mut [u8]) {
        for row in codes.chunks_exact_mut(levels.len()) {
            for ((code, levels), chosen) in row.iter_mut().zip(levels).zip(chosen) {
                let mapped = (levels >> (2 * (*code & 15)) & 3) as u8;
                *code = if *chosen { mapped } else { *code };
            }
        }
    }
}

vectorised! {
    fn map_token(levels: u32, codes: &mut [u8]) {
        for code in codes {
            *code = (levels >> (2 * (*code & 15)) & 3) as u8;
        }
    }
}
