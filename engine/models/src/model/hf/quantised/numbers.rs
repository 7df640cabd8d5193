//! E8M0: powers of two in eight bits, of the OCP Microscaling formats, version 1.0.

/// 2^(code − 127); 255 is NaN.
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
    fn codes_are_powers_of_two() {
        assert_eq!(e8m0(0), 2f32.powi(-127));
        assert_eq!((e8m0(127), e8m0(254)), (1.0, 2f32.powi(127)));
        assert!(e8m0(255).is_nan());
    }
}
