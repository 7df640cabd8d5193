//! The types whose 4-bit codes are places in a table of values.

use ebb_kernels::weight_formats::{IQ4_VALUES, e8m0};

use super::blocks32::nibbles;
use super::half_at;

/// Twice the values of E2M1's codes: sign, two bits of exponent, one of mantissa.
const E2M1_VALUES_TWICE: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
];

/// `d: f16, codes: [u4; 32]`; value = d · table\[code\].
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    nibbles(&block[2..], out, |_, code| d * iq4(code));
}

/// `d: f16, high scale bits: u16, low scale bits: [u4; 8], codes: [u4; 256]`: eight sub-blocks of
/// 32 elements, each with a 6-bit scale; value = d · (scale − 32) · table\[code\]. The codes of a
/// sub-block lie as in [`iq4_nl`].
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    let (low, codes) = (&block[4..8], block[8..].as_chunks::<16>().0);
    for (sub, (out, codes)) in out.as_chunks_mut().0.iter_mut().zip(codes).enumerate() {
        let low = low[sub / 2] >> (4 * (sub % 2)) & 15;
        let scale = low | ((high >> (2 * sub) & 3) as u8) << 4;
        let scale = d * (f32::from(scale) - 32.0);
        nibbles(codes, out, |_, code| scale * iq4(code));
    }
}

fn iq4(code: u8) -> f32 {
    f32::from(IQ4_VALUES[usize::from(code)])
}

/// `exponent: u8, codes: [u4; 32]`; value = E8M0(exponent) · E2M1(code). Where the exponent is
/// E8M0's NaN, GGML computes on with 2^128; here the block is of NaN and refused.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // Half the power, because the table has twice the values.
    let half = e8m0(block[0]) / 2.0;
    nibbles(&block[1..], out, |_, code| {
        half * E2M1_VALUES_TWICE[code as usize]
    });
}
