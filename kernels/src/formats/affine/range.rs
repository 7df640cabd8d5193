//! Minimum and maximum of every group, in integers so that no order of comparison matters.

use half::{bf16, f16};

use super::super::{FormatError, RecordShape};
use super::fp16::{FP16_MAX, round_down, round_up};
use super::meta::MAX_GROUPS;
use super::{Grouping, Meta};

/// Writes the zero and range of every group of `rows`, `[128][head_dim]`, into `meta`.
#[inline(always)]
pub(crate) fn group_ranges(
    grouping: Grouping,
    shape: RecordShape,
    rows: &[bf16],
    meta: &mut [u8],
) -> Result<(), FormatError> {
    let groups = grouping.groups(shape);
    let mut low = [i16::MAX; MAX_GROUPS];
    let mut high = low.map(|_| i16::MIN);
    let (low, high) = (&mut low[..groups], &mut high[..groups]);
    match grouping {
        Grouping::Channel => extremes_by_channel(shape.head_dim, rows, low, high),
        Grouping::Token => extremes_by_token(shape.head_dim, rows, low, high),
    }
    for group in 0..groups {
        let (min, max) = (value(low[group]), value(high[group]));
        if !(min.abs() <= FP16_MAX && max.abs() <= FP16_MAX) {
            return Err(outside(shape.head_dim, rows));
        }
        let (zero, range) = zero_and_range(min, max).ok_or(FormatError::RangeBeyondFp16 {
            group: grouping.name(),
            index: group,
            min,
            max,
        })?;
        Meta::store(meta, groups, group, zero, range);
    }
    Ok(())
}

/// The zero, not above `min`, and the range, such that their sum is not below `max`; `None` if the
/// range does not fit fp16. Both bounds are within fp16.
pub(crate) fn zero_and_range(min: f32, max: f32) -> Option<(f16, f16)> {
    let zero = round_down(min);
    let range = max - zero.to_f32();
    (range <= FP16_MAX).then(|| (zero, round_up(range)))
}

#[inline(always)]
fn extremes_by_channel(head_dim: usize, rows: &[bf16], low: &mut [i16], high: &mut [i16]) {
    for row in rows.chunks_exact(head_dim) {
        for ((x, low), high) in row.iter().zip(&mut *low).zip(&mut *high) {
            let key = sortable(*x);
            *low = key.min(*low);
            *high = key.max(*high);
        }
    }
}

#[inline(always)]
fn extremes_by_token(head_dim: usize, rows: &[bf16], low: &mut [i16], high: &mut [i16]) {
    for ((row, low), high) in rows.chunks_exact(head_dim).zip(low).zip(high) {
        let keys = || row.iter().map(|x| sortable(*x));
        *low = keys().fold(i16::MAX, i16::min);
        *high = keys().fold(i16::MIN, i16::max);
    }
}

/// A bf16 as an integer of the same order; infinities and NaNs lie at the ends.
#[inline(always)]
fn sortable(x: bf16) -> i16 {
    let bits = x.to_bits() as i16;
    bits ^ ((bits >> 15) & 0x7fff)
}

fn value(key: i16) -> f32 {
    let bits = key ^ ((key >> 15) & 0x7fff);
    bf16::from_bits(bits as u16).to_f32()
}

/// Refuses rows with an element that is not finite or not within fp16.
pub(crate) fn check_values(head_dim: usize, rows: &[bf16]) -> Result<(), FormatError> {
    let magnitude = |x: &bf16| x.to_bits() & 0x7fff;
    let loudest = rows.iter().map(magnitude).fold(0, u16::max);
    if bf16::from_bits(loudest).to_f32() <= FP16_MAX {
        Ok(())
    } else {
        Err(outside(head_dim, rows))
    }
}

/// The error for the first element that is not a finite fp16-range value; there is one.
#[cold]
fn outside(head_dim: usize, rows: &[bf16]) -> FormatError {
    let bad = |x: &bf16| !x.is_finite() || x.to_f32().abs() > FP16_MAX;
    let at = rows.iter().position(bad).unwrap_or(0);
    FormatError::of_element(at / head_dim, at % head_dim, rows[at])
}
