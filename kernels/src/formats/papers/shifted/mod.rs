//! `int4shr`, `int2shr`, `int4rsh`, `int2rsh`: 8-bit codes brought down by plain and by rounding
//! right shifts, which PM-KVQ compares its Equivalent Right Shift with; static.
//!
//! Layout: `[zero][range][plane]`, as `affine::uniform`; the step is the 8-bit one times 16 or 64.

use std::ops::Range;

use half::bf16;

use crate::formats::affine::{Grouping, Meta, code_plane, dequantise_plane, pack_plane, quantise};
use crate::formats::codec::PageFormat;
use crate::formats::{FormatError, RecordShape};
use crate::kv::Side;

/// Codec of codes of `BITS` (4 or 2) that were 8 bits wide, shifted with rounding or without.
pub(crate) struct Shifted<const BITS: u32, const ROUNDED: bool>;

/// Steps of 8 bit to a group, over those of a code of `bits`: the widths halve, and the step grows
/// by a power of two.
const fn levels(bits: u32) -> f32 {
    255.0 / (1 << (8 - bits)) as f32
}

/// A code of twice `bits` at `bits`.
const fn shift(code: u8, bits: u32, rounded: bool) -> u8 {
    let half = if rounded { 1 << (bits - 1) } else { 0 };
    let shifted = (code as u32 + half) >> bits;
    let most = (1 << bits) - 1;
    (if shifted < most { shifted } else { most }) as u8
}

const fn meta_bytes(shape: RecordShape) -> usize {
    Meta::bytes(Grouping::of_side(shape.side), shape)
}

impl<const BITS: u32, const ROUNDED: bool> PageFormat for Shifted<BITS, ROUNDED> {
    fn nominal_bits(&self) -> f32 {
        BITS as f32
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K, Side::V]
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        meta_bytes(shape) + code_plane(shape, BITS).bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let (meta, plane) = out.split_at_mut(meta_bytes(shape));
        let mut codes = vec![0; shape.elements()];
        let grouping = Grouping::of_side(shape.side);
        quantise(grouping, shape, rows, 255, meta, &mut codes)?;
        for code in &mut codes {
            *code = shift(*code, 4, ROUNDED);
            if BITS == 2 {
                *code = shift(*code, 2, ROUNDED);
            }
        }
        pack_plane::<BITS>(shape, &codes, plane);
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        let grouping = Grouping::of_side(shape.side);
        dequantise_plane::<BITS>(grouping, levels(BITS), shape, record, tokens, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In 8-bit steps: what a code loses, over all codes.
    fn errors(to: fn(u8) -> u8, step: i32) -> Vec<i32> {
        (0..=255u8)
            .map(|code| i32::from(to(code)) * step - i32::from(code))
            .collect()
    }

    #[test]
    fn the_equivalent_shift_errs_least_and_the_plain_one_falls_by_half_a_step() {
        let all = [
            errors(|c| shift(c, 4, false), 16),
            errors(|c| shift(c, 4, true), 16),
            errors(|c| ((u32::from(c) + 8) / 17) as u8, 17),
        ];
        let sum = |errors: &Vec<i32>| errors.iter().sum::<i32>();
        let worst = |errors: &Vec<i32>| errors.iter().map(|e| e.abs()).max();
        assert_eq!(all.each_ref().map(worst), [Some(15), Some(15), Some(8)]);
        // Half a step of 16 less half an old one, over 256 codes.
        assert_eq!(sum(&all[0]), -15 * 128);
        // Only the top codes, cut off, pull the rounded one down; ties pull it up.
        assert_eq!(sum(&all[2]), 0);
        assert!(sum(&all[1]).abs() < 128);
    }
}
