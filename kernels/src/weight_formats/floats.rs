//! Floating-point numbers of four and of eight bits.
//!
//! E4M3 is "FP8 formats for deep learning" (arXiv 2209.05433); E2M1 and E8M0 are of the OCP
//! Microscaling formats, version 1.0.

/// E2M1 by code: a sign, two bits of exponent, one of mantissa.
pub const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// E4M3 by code: a sign, four bits of exponent with bias 7, three of mantissa. There is no
/// infinity, and one NaN of either sign.
pub static E4M3: [f32; 256] = e4m3_values();

const fn e4m3_values() -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (sign, exponent, mantissa) = ((code >> 7) as u32, code as u32 >> 3 & 15, code & 7);
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            // Eighths of 2^-6.
            (0, _) => mantissa as f32 / 512.0,
            _ => f32::from_bits((exponent + 120) << 23 | (mantissa as u32) << 20),
        };
        values[code] = if sign == 1 { -magnitude } else { magnitude };
        code += 1;
    }
    values
}

/// The integer nearest to `value`, 0 to 2^22, ties to even: as `round_ties_even`, which is a call
/// where the compiler may not use SSE4.1.
pub(super) fn rounded(value: f32) -> f32 {
    (value + INTEGERS) - INTEGERS
}

/// From here on to twice as much, floats are the integers.
const INTEGERS: f32 = (1u32 << 23) as f32;

/// E8M0 by code: 2^(code − 127), a scale of the Microscaling formats. 255 is NaN.
pub fn e8m0(code: u8) -> f32 {
    match code {
        // Below the normal numbers of f32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// The code of the E4M3 number nearest to `value`, ties to the even mantissa. What is beyond ±448
/// becomes ±448; NaN stays NaN.
pub fn nearest_e4m3(value: f32) -> u8 {
    // Without branches, so that the compiler computes several at once.
    let sign = value.to_bits() >> 24 & 0x80;
    let magnitude = value.abs().min(448.0);
    // Distances of neighbours: eighths of the power of two, of 2^-6 at least.
    let power = (magnitude.to_bits() >> 23).max(127 - 6);
    let eighth = f32::from_bits((power - 3) << 23);
    // The integer, in the last bits of the sum that rounded to it.
    let eighths = (magnitude / eighth + INTEGERS).to_bits() - INTEGERS.to_bits();
    // Eight and more eighths carry into the exponent by themselves.
    let code = ((power - (127 - 6)) << 3) + eighths;
    let code = if value.is_nan() { 0x7f } else { code };
    (sign | code) as u8
}

/// The E2M1 code nearest to a number, of two the even one; beyond 6 that of 6. Magnitudes are 0,
/// 0.5, 1, 1.5, 2, 3, 4 and 6.
pub fn nearest_e2m1(value: f32) -> u8 {
    let magnitude = value.abs();
    let code = u8::from(magnitude > 0.25)
        + u8::from(magnitude >= 0.75)
        + u8::from(magnitude > 1.25)
        + u8::from(magnitude >= 1.75)
        + u8::from(magnitude > 2.5)
        + u8::from(magnitude >= 3.5)
        + u8::from(magnitude > 5.0);
    code | u8::from(value < 0.0) << 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight_formats::Codes;

    /// As the nearest of all values is, but for ties: these go to even codes.
    #[test]
    fn e2m1_codes_are_the_nearest() {
        let values = Codes::E2M1.values();
        let value = |x: f32| values[usize::from(nearest_e2m1(x))];
        for step in -700..=700 {
            let x = step as f32 / 100.0;
            let distances = values.iter().map(|value| (value - x).abs());
            let least = distances.fold(f32::MAX, f32::min);
            assert!((value(x) - x).abs() <= least, "{x}: {}", value(x));
        }
        let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
        assert_eq!(ties.map(value), [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
        assert_eq!(ties.map(|x| value(-x)), ties.map(|x| -value(x)));
    }

    #[test]
    fn rounding_is_to_nearest_and_ties_to_even() {
        for quarter in 0..1000 {
            let value = quarter as f32 / 4.0;
            for value in [value, value.next_up(), value.next_down().max(0.0)] {
                assert_eq!(rounded(value), value.round_ties_even(), "{value}");
            }
        }
        assert_eq!(rounded(4_194_303.5), 4_194_304.0);
    }

    #[test]
    fn codes_are_the_numbers_of_the_published_tables() {
        // The table of arXiv 2209.05433: greatest, least normal, greatest and least subnormal.
        assert_eq!(E4M3[0x7E], 448.0);
        assert_eq!(E4M3[0x88], -(2f32.powi(-6)));
        assert_eq!(E4M3[0x07], 0.875 * 2f32.powi(-6));
        assert_eq!(E4M3[0x01], 2f32.powi(-9));
        assert!(E4M3[0x7F].is_nan() && E4M3[0xFF].is_nan());
        assert_eq!(E4M3[0x80].to_bits(), (-0.0f32).to_bits());
        for code in 1..127 {
            assert!(E4M3[code] > E4M3[code - 1] && E4M3[code + 128] == -E4M3[code]);
        }
    }

    #[test]
    fn codes_of_e8m0_are_powers_of_two() {
        assert_eq!(e8m0(0), 2f32.powi(-127));
        assert_eq!((e8m0(127), e8m0(254)), (1.0, 2f32.powi(127)));
        assert!(e8m0(255).is_nan());
    }

    #[test]
    fn the_nearest_code_is_the_nearest() {
        for code in 0..=0xffu8 {
            let value = E4M3[usize::from(code)];
            assert_eq!(nearest_e4m3(value), code, "{value}");
        }
        for low in 0..0x7eu8 {
            let (a, b) = (E4M3[usize::from(low)], E4M3[usize::from(low) + 1]);
            let middle = (a + b) / 2.0;
            let even = low + low % 2;
            assert_eq!(nearest_e4m3(middle), even, "between {a} and {b}");
            assert_eq!(nearest_e4m3(middle.next_down()), low);
            assert_eq!(nearest_e4m3(-middle.next_up()), 0x80 | (low + 1));
        }
        for beyond in [449.0, 1e30, f32::INFINITY] {
            assert_eq!((nearest_e4m3(beyond), nearest_e4m3(-beyond)), (0x7e, 0xfe));
        }
    }
}
