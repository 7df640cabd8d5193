//! PM-KVQ's Equivalent Right Shift: halving the width of codes in integers.

/// An 8-bit code at 4 bit: `((2^8 - 2^4 + 1) (X + 2^3)) >> 12`, which is `(X + 8) div 17`.
#[inline(always)]
pub(crate) const fn shift_8_to_4(code: u8) -> u8 {
    (((code as u32 + 8) * 241) >> 12) as u8
}

/// A 4-bit code at 2 bit: `((2^4 - 2^2 + 1) (X + 2)) >> 6`, which is `(X + 2) div 5`.
#[inline(always)]
pub(crate) const fn shift_4_to_2(code: u8) -> u8 {
    ((code + 2) * 13) >> 6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds half up what the code of width 2b is worth in steps of width b: both grids span the
    /// same range, so one step of b bits is `(2^2b - 1) / (2^b - 1) = 2^b + 1` steps of 2b bits.
    fn requantised(code: u32, bits: u32) -> u32 {
        let ratio = (1 << bits) + 1;
        (2 * code + ratio) / (2 * ratio)
    }

    #[test]
    fn a_shift_is_requantisation_for_every_code() {
        for code in 0..=255u8 {
            assert_eq!(u32::from(shift_8_to_4(code)), requantised(code.into(), 4));
            assert_eq!(shift_8_to_4(code), ((u32::from(code) + 8) / 17) as u8);
        }
        for code in 0..16u8 {
            assert_eq!(u32::from(shift_4_to_2(code)), requantised(code.into(), 2));
            assert_eq!(shift_4_to_2(code), (code + 2) / 5);
        }
    }

    /// Rounding twice loses nothing in the worst case: half a step of 2 bits is 42.5 steps of 8
    /// bits.
    #[test]
    fn two_shifts_stay_within_half_a_step() {
        for code in 0..=255i32 {
            let two = i32::from(shift_4_to_2(shift_8_to_4(code as u8)));
            assert!((code - 85 * two).abs() <= 42, "{code} became {two}");
        }
    }
}
