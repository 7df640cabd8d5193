//! The K-quants: super-blocks of 256 elements with quantised scales.

use super::half_at;

/// `scales: [u8; 16], codes: [u2; 256], d: f16, dmin: f16`: sixteen sub-blocks of 16 elements, each
/// with a 4-bit scale (low half of its byte) and a 4-bit minimum (high half);
/// value = d · scale · code − dmin · minimum. In each half of 128 elements, element `32q + i` has
/// its code in bits 2q of code byte `i`.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, rest) = block.split_at(16);
    let (codes, _) = rest.split_at(64);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[sub] & 15);
        let min = dmin * f32::from(scales[sub] >> 4);
        let (half, quarter) = (sub / 8, sub % 8 / 2);
        let codes = &codes[32 * half + 16 * (sub % 2)..][..16];
        for (out, &byte) in out.iter_mut().zip(codes) {
            *out = scale * f32::from(byte >> (2 * quarter) & 3) - min;
        }
    }
}

/// `high: [u1; 256], low: [u2; 256], scales: [u8; 12], d: f16`: sixteen sub-blocks of 16 elements,
/// each with a 6-bit scale; value = d · (scale − 32) · (code − 4). Low bits lie as in [`q2_k`];
/// element `i + 32j` has its high bit in bit `j` of high byte `i`.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, rest) = block.split_at(32);
    let (low, rest) = rest.split_at(64);
    let (scales, _) = rest.split_at(12);
    let d = half_at(block, 108);
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        // Low four bits: halves of bytes 0 to 7. High two: pairs of bits of bytes 8 to 11.
        let bits = scales[sub % 8] >> (4 * (sub / 8)) & 15;
        let scale = bits | (scales[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4;
        let scale = d * (f32::from(scale) - 32.0);
        let (half, quarter, first) = (sub / 8, sub % 8 / 2, 16 * (sub % 2));
        let (low, high) = (&low[32 * half + first..][..16], &high[first..][..16]);
        for (out, (&low, &high)) in out.iter_mut().zip(low.iter().zip(high)) {
            let code = low >> (2 * quarter) & 3 | (high >> (sub / 2) & 1) << 2;
            *out = scale * (f32::from(code) - 4.0);
        }
    }
}

/// `d: f16, dmin: f16, scales: [u8; 12], codes: [u4; 256]`: eight sub-blocks of 32 elements, each
/// with a 6-bit scale and a 6-bit minimum; value = d · scale · code − dmin · minimum.
/// Sub-blocks 2j and 2j + 1 are the low and the high halves of code bytes 32j..32j + 32.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (_, codes) = block.split_at(16);
    with_scales(block, codes, out, |_, _, code| code);
}

/// `d: f16, dmin: f16, scales: [u8; 12], fifth bits: [u8; 32], codes: [u4; 256]`: as [`q4_k`],
/// and bit `s` of fifth-bit byte `i` belongs to element `i` of sub-block `s`.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (_, rest) = block.split_at(16);
    let (high, codes) = rest.split_at(32);
    with_scales(block, codes, out, |sub, i, code| {
        code | (high[i] >> sub & 1) << 4
    });
}

/// What Q4_K and Q5_K share; `code(sub-block, element, low four bits)` completes a code.
#[inline(always)]
fn with_scales<const B: usize>(
    block: &[u8; B],
    codes: &[u8],
    out: &mut [f32; 256],
    code: impl Fn(usize, usize, u8) -> u8,
) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let scales = &block[4..16];
    for (pair, (out, codes)) in out
        .chunks_exact_mut(64)
        .zip(codes.chunks_exact(32))
        .enumerate()
    {
        for (half, out) in out.chunks_exact_mut(32).enumerate() {
            let sub = 2 * pair + half;
            let (scale, min) = scale_and_min(scales, sub);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            for (i, (out, &byte)) in out.iter_mut().zip(codes).enumerate() {
                let low = byte >> (4 * half) & 15;
                *out = scale * f32::from(code(sub, i, low)) - min;
            }
        }
    }
}

/// The 6-bit scale and minimum of a sub-block, out of twelve bytes: bytes 0–3 hold the scales of
/// sub-blocks 0–3 and bytes 4–7 their minima, in the low six bits. Sub-blocks 4–7 have four low
/// bits in bytes 8–11 (scale low half, minimum high half) and their top two bits are the top two
/// bits of bytes 0–3 (scales) and 4–7 (minima).
pub(in crate::model::gguf) fn scale_and_min(scales: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (scales[sub] & 63, scales[sub + 4] & 63)
    } else {
        let low = scales[sub + 4];
        (
            low & 15 | scales[sub - 4] >> 6 << 4,
            low >> 4 | scales[sub] >> 6 << 4,
        )
    }
}

/// `low: [u4; 256], high: [u2; 256], scales: [i8; 16], d: f16`: sixteen sub-blocks of 16 elements;
/// value = d · scale · (code − 32). In each half of 128 elements, element `32q + i` has its low
/// bits in half `q / 2` of low byte `32 (q mod 2) + i`, and its high bits in bits 2q of high
/// byte `i`.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, _) = rest.split_at(16);
    let d = half_at(block, 208);
    let halves = low
        .chunks_exact(64)
        .zip(high.chunks_exact(32))
        .zip(scales.chunks_exact(8));
    for (out, ((low, high), scales)) in out.chunks_exact_mut(128).zip(halves) {
        for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
            let low = &low[32 * (quarter % 2)..][..32];
            let scales = [scales[2 * quarter], scales[2 * quarter + 1]];
            let scales = scales.map(|scale| d * f32::from(scale as i8));
            for (i, (out, (&low, &high))) in out.iter_mut().zip(low.iter().zip(high)).enumerate() {
                let code = low >> (4 * (quarter / 2)) & 15 | (high >> (2 * quarter) & 3) << 4;
                *out = scales[i / 16] * (f32::from(code) - 32.0);
            }
        }
    }
}
