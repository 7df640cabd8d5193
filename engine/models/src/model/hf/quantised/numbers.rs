//! Floating-point numbers of four and of eight bits.
//!
//! E4M3 is "FP8 formats for deep learning" (arXiv 2209.05433); E2M1 and E8M0 are of the OCP
//! Microscaling formats, version 1.0.

/// E2M1 by code: a sign, two bits of exponent, one of mantissa.
pub(super) const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// E4M3 by code: a sign, four bits of exponent with bias 7, three of mantissa. There is no
/// infinity, and one NaN of either sign.
pub(super) static E4M3: [f32; 256] = e4m3_values();

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

/// E8M0: 2^(code − 127); 255 is NaN.
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        // Below the normal numbers of f32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(e8m0(0), 2f32.powi(-127));
        assert_eq!((e8m0(127), e8m0(254)), (1.0, 2f32.powi(127)));
        assert!(e8m0(255).is_nan());
    }
}
