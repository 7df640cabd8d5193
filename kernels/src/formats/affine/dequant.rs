//! Codes in natural order back to values.

use super::super::RecordShape;
use super::meta::MAX_GROUPS;
use super::{Grouping, Meta};

/// Zeros and steps of a record, widened once a call.
pub(crate) struct Steps {
    grouping: Grouping,
    zero: [f32; MAX_GROUPS],
    step: [f32; MAX_GROUPS],
}

impl Steps {
    /// Reads the metadata of `record`; `levels` are a group's `2^b - 1`.
    #[inline(always)]
    pub(crate) fn new(
        grouping: Grouping,
        shape: RecordShape,
        record: &[u8],
        levels: impl Fn(usize) -> f32,
    ) -> Self {
        let mut steps = Self {
            grouping,
            zero: [0.0; _],
            step: [0.0; _],
        };
        let groups = grouping.groups(shape);
        let (zero, step) = (&mut steps.zero[..groups], &mut steps.step[..groups]);
        Meta::of(record, groups).widen(0, zero, step);
        for (group, range) in step.iter_mut().enumerate() {
            *range /= levels(group);
        }
        steps
    }

    /// Lifts the zeros by `by` steps.
    #[inline(always)]
    pub(crate) fn lift(&mut self, by: f32) {
        for (zero, step) in self.zero.iter_mut().zip(&self.step) {
            *zero += step * by;
        }
    }
}

/// `value = code * step + zero` for the 16 tokens of a tile: `codes` and `out` are
/// `[16][head_dim]`.
#[inline(always)]
pub(crate) fn dequantise_tile(
    steps: &Steps,
    head_dim: usize,
    tile: usize,
    codes: &[u8],
    out: &mut [f32],
) {
    let rows = codes
        .chunks_exact(head_dim)
        .zip(out.chunks_exact_mut(head_dim));
    match steps.grouping {
        Grouping::Channel => {
            let (zero, step) = (&steps.zero[..head_dim], &steps.step[..head_dim]);
            for (codes, out) in rows {
                for (((code, x), zero), step) in codes.iter().zip(out).zip(zero).zip(step) {
                    *x = *code as f32 * step + zero;
                }
            }
        }
        Grouping::Token => {
            for (token, (codes, out)) in rows.enumerate() {
                let (zero, step) = (steps.zero[16 * tile + token], steps.step[16 * tile + token]);
                for (code, x) in codes.iter().zip(out) {
                    *x = *code as f32 * step + zero;
                }
            }
        }
    }
}
