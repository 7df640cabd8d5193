//! The two ways of halving the width of codes that PM-KVQ compares its Equivalent Right Shift with
//! (arXiv 2505.18610, section 4.3.1), from 16 bit on; static.
//!
//! Layout: `[zero][range][plane]`, as `affine::uniform`. Of a page's 16-bit codes,
//! `min(floor((x - z) * (65535 / R) + 0.5), 65535)`, the highest bits are kept; the strategies
//! differ in what these are worth.

use std::ops::Range;

use half::bf16;

use crate::formats::affine::{
    Grouping, Meta, code_plane, dequantise_plane, pack_plane, quantise_high,
};
use crate::formats::codec::PageFormat;
use crate::formats::{FormatError, RecordShape};
use crate::kv::Side;

/// What a code is worth after a shift from 2b to b bits, in terms of its zero Z and step S before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// `Z_b = Z_2b`, `S_b = (2^b + 1) S_2b`: the range stays, as with the Equivalent Right Shift.
    Direct,
    /// `S_b = 2^b S_2b`, `Z_b = Z_2b + (S_b - S_2b) / 2`: a code stands for the mean of those that
    /// became it.
    Modified,
}

/// Codec of the highest `BITS` (4 or 2) of 16-bit codes.
pub(crate) struct Shifted<const BITS: u32> {
    pub(crate) strategy: Strategy,
    /// Keys have a zero and a range per token, and there are no values.
    pub(crate) is_by_token: bool,
}

impl<const BITS: u32> Shifted<BITS> {
    /// Steps of a code of `BITS` to a group's range.
    const fn levels(&self) -> f32 {
        match self.strategy {
            Strategy::Direct => ((1 << BITS) - 1) as f32,
            Strategy::Modified => 65535.0 / (1 << (16 - BITS)) as f32,
        }
    }

    /// How far the zero lies above the group's, in steps: all `(S_b - S_2b) / 2` add up to
    /// `(S_BITS - S_16) / 2`. Exact in f32.
    const fn lift(&self) -> f32 {
        match self.strategy {
            Strategy::Direct => 0.0,
            Strategy::Modified => 0.5 - 0.5 / (1 << (16 - BITS)) as f32,
        }
    }

    const fn grouping(&self, shape: RecordShape) -> Grouping {
        if self.is_by_token {
            Grouping::Token
        } else {
            Grouping::of_side(shape.side)
        }
    }

    const fn meta_bytes(&self, shape: RecordShape) -> usize {
        Meta::bytes(self.grouping(shape), shape)
    }
}

/// An 8-bit code's highest bits: shifted to 4 bits, and from there to 2.
const fn shift(code: u8, bits: u32) -> u8 {
    let four = code >> 4;
    if bits == 2 { four >> 2 } else { four }
}

impl<const BITS: u32> PageFormat for Shifted<BITS> {
    fn nominal_bits(&self) -> f32 {
        BITS as f32
    }

    fn sides(&self) -> &'static [Side] {
        if self.is_by_token {
            &[Side::K]
        } else {
            &[Side::K, Side::V]
        }
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        self.meta_bytes(shape) + code_plane(shape, BITS).bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let (meta, plane) = out.split_at_mut(self.meta_bytes(shape));
        let mut codes = vec![0; shape.elements()];
        quantise_high(self.grouping(shape), shape, rows, meta, &mut codes)?;
        codes.iter_mut().for_each(|code| *code = shift(*code, BITS));
        pack_plane::<BITS>(shape, &codes, plane);
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        let (grouping, levels, lift) = (self.grouping(shape), self.levels(), self.lift());
        dequantise_plane::<BITS>(grouping, levels, lift, shape, record, tokens, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What 8-bit codes lose when they come down to 4 bits, in half 8-bit steps: the worst of all
    /// codes, their sum, and the sum of squares.
    fn losses(value: impl Fn(i32) -> i32) -> (i32, i32, i32) {
        let lost: Vec<i32> = (0..256).map(|code| value(code) - 2 * code).collect();
        let worst = lost.iter().map(|e| e.abs()).max().unwrap();
        let squares = lost.iter().map(|e| e * e).sum();
        (worst, lost.iter().sum(), squares)
    }

    #[test]
    fn a_shift_from_8_to_4_bits_loses_what_the_formulas_say() {
        let code = |c: i32| i32::from(shift(c as u8, 4));
        // Steps of 16 from a zero 7.5 above: the mean of 16 codes, a variance of (256 - 1) / 12.
        let modified = losses(|c| 2 * 16 * code(c) + 15);
        assert_eq!(modified, (15, 0, 4 * 256 * 255 / 12));
        // Steps of 17 from the same zero: the difference of the code's two halves.
        let direct = losses(|c| 2 * 17 * code(c));
        assert_eq!(direct, (2 * 15, 0, 2 * modified.2));
        // The nearest multiple of 17: of 8 + 1 + 8 codes but for the ends, which are exact.
        let equivalent = losses(|c| 2 * 17 * ((c + 8) / 17));
        assert_eq!(equivalent, (16, 0, 4 * 15 * 2 * 204));
        assert!(modified.2 < equivalent.2 && equivalent.2 < direct.2);
    }

    /// In steps of 16 bits: level by level, as the paper writes it, against what this codec has.
    #[test]
    fn steps_and_zeros_are_those_of_all_shifts_together() {
        fn check<const BITS: u32>() {
            for strategy in [Strategy::Direct, Strategy::Modified] {
                let (mut step, mut zero, mut bits) = (1.0, 0.0, 16);
                while bits > BITS {
                    bits /= 2;
                    let power = f64::from(1 << bits);
                    let before = step;
                    match strategy {
                        Strategy::Direct => step *= power + 1.0,
                        Strategy::Modified => {
                            step *= power;
                            zero += (step - before) / 2.0;
                        }
                    }
                }
                let format = Shifted::<BITS> {
                    strategy,
                    is_by_token: false,
                };
                assert_eq!(f64::from(format.levels()) * step, 65535.0);
                assert_eq!(f64::from(format.lift()) * step, zero);
            }
        }
        check::<4>();
        check::<2>();
    }
}
