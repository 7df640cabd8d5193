//! 16-bit rows to metadata and codes in natural order.

use half::bf16;

use super::super::simd::vectorised;
use super::super::{FormatError, MAX_HEAD_DIM, RecordShape};
use super::{Grouping, Meta, group_ranges};
use crate::BLOCK_TOKENS;

/// Codes, and the bits of them that are kept.
#[derive(Clone, Copy)]
struct Levels {
    most: u16,
    /// Low bits that are dropped.
    dropped: u32,
}

vectorised! {
    /// Quantises `rows`, `[128][head_dim]`, to `levels` + 1 levels: zeros and ranges into `meta`,
    /// codes in the order of the rows into `codes`.
    pub(crate) fn quantise(
        grouping: Grouping,
        shape: RecordShape,
        rows: &[bf16],
        levels: u8,
        meta: &mut [u8],
        codes: &mut [u8],
    ) -> Result<(), FormatError> {
        let levels = Levels { most: levels as u16, dropped: 0 };
        quantise_rows(grouping, shape, rows, levels, meta, codes)
    }
}

vectorised! {
    /// The same to 65,536 levels, of whose codes `codes` gets the higher byte.
    pub(crate) fn quantise_high(
        grouping: Grouping,
        shape: RecordShape,
        rows: &[bf16],
        meta: &mut [u8],
        codes: &mut [u8],
    ) -> Result<(), FormatError> {
        let levels = Levels { most: u16::MAX, dropped: 8 };
        quantise_rows(grouping, shape, rows, levels, meta, codes)
    }
}

#[inline(always)]
fn quantise_rows(
    grouping: Grouping,
    shape: RecordShape,
    rows: &[bf16],
    levels: Levels,
    meta: &mut [u8],
    codes: &mut [u8],
) -> Result<(), FormatError> {
    group_ranges(grouping, shape, rows, meta)?;
    let meta = Meta::of(meta, grouping.groups(shape));
    match grouping {
        Grouping::Channel => by_channel(shape.head_dim, rows, levels, meta, codes),
        Grouping::Token => by_token(shape.head_dim, rows, levels, meta, codes),
    }
    Ok(())
}

#[inline(always)]
fn by_channel(head_dim: usize, rows: &[bf16], levels: Levels, meta: Meta<'_>, codes: &mut [u8]) {
    let (mut zero, mut scale) = ([0.0; MAX_HEAD_DIM], [0.0; MAX_HEAD_DIM]);
    let (zero, scale) = (&mut zero[..head_dim], &mut scale[..head_dim]);
    meta.widen(0, zero, scale);
    scale
        .iter_mut()
        .for_each(|r| *r = steps_per_unit(*r, levels));
    for (row, codes) in rows
        .chunks_exact(head_dim)
        .zip(codes.chunks_exact_mut(head_dim))
    {
        for (((x, code), zero), scale) in row.iter().zip(codes).zip(&*zero).zip(&*scale) {
            *code = code_of(*x, *zero, *scale, levels);
        }
    }
}

#[inline(always)]
fn by_token(head_dim: usize, rows: &[bf16], levels: Levels, meta: Meta<'_>, codes: &mut [u8]) {
    let (mut zero, mut scale) = ([0.0; BLOCK_TOKENS], [0.0; BLOCK_TOKENS]);
    meta.widen(0, &mut zero, &mut scale);
    let rows = rows.chunks_exact(head_dim);
    for (token, (row, codes)) in rows.zip(codes.chunks_exact_mut(head_dim)).enumerate() {
        let (zero, scale) = (zero[token], steps_per_unit(scale[token], levels));
        for (x, code) in row.iter().zip(codes) {
            *code = code_of(*x, zero, scale, levels);
        }
    }
}

/// Steps per value unit; 0 for a constant group, whose codes are all 0.
#[inline(always)]
fn steps_per_unit(range: f32, levels: Levels) -> f32 {
    if range > 0.0 {
        levels.most as f32 / range
    } else {
        0.0
    }
}

/// Rounds half up; `x` is not below `zero`.
#[inline(always)]
fn code_of(x: bf16, zero: f32, scale: f32, levels: Levels) -> u8 {
    let x = f32::from_bits((x.to_bits() as u32) << 16);
    let steps = (x - zero) * scale + 0.5;
    // The product may exceed the levels by a rounding error.
    let most = levels.most as f32;
    let steps = if steps < most { steps } else { most };
    // SAFETY: `x` and `zero` are finite, `x >= zero` and `scale >= 0`, so `steps` is from 0.5 to
    // 65535. (A saturating cast keeps the loop from being vectorised.)
    let code = unsafe { steps.to_int_unchecked::<i32>() };
    (code >> levels.dropped) as u8
}
