//! The types with blocks of 32 elements: one scale, for `_1` types one minimum, and the codes.
//!
//! 4- and 5-bit codes: byte `i` of the codes holds element `i` in its low half and element
//! `i + 16` in its high half. 5-bit types keep the fifth bits in a u32, bit `i` for element `i`.

use super::half_at;

/// `d: f16, codes: [i8; 32]`; value = code · d.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (out, &code) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(code as i8) * d;
    }
}

/// `d: f16, codes: [u4; 32]`; value = d · (code − 8).
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    nibbles(&block[2..], out, |_, code| d * (f32::from(code) - 8.0));
}

/// `d: f16, m: f16, codes: [u4; 32]`; value = d · code + m.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    nibbles(&block[4..], out, |_, code| d * f32::from(code) + m);
}

/// `d: f16, fifth bits: u32, codes: [u4; 32]`; value = d · (code − 16).
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, high) = (half_at(block, 0), fifth_bits(&block[2..6]));
    nibbles(&block[6..], out, |i, code| {
        d * (f32::from(code | fifth(high, i)) - 16.0)
    });
}

/// `d: f16, m: f16, fifth bits: u32, codes: [u4; 32]`; value = d · code + m.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let high = fifth_bits(&block[4..8]);
    nibbles(&block[8..], out, |i, code| {
        d * f32::from(code | fifth(high, i)) + m
    });
}

/// Calls `value(element index, low four bits)` for each of the 32 elements.
#[inline(always)]
pub(in crate::model::gguf) fn nibbles<T>(
    codes: &[u8],
    out: &mut [T; 32],
    value: impl Fn(usize, u8) -> T,
) {
    let (low, high) = out.split_at_mut(16);
    for (i, ((low, high), &byte)) in low.iter_mut().zip(high).zip(codes).enumerate() {
        *low = value(i, byte & 15);
        *high = value(i + 16, byte >> 4);
    }
}

pub(in crate::model::gguf) fn fifth_bits(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |bits, &byte| bits << 8 | u32::from(byte))
}

/// The fifth bit of element `i`, in its place.
pub(in crate::model::gguf) fn fifth(bits: u32, i: usize) -> u8 {
    ((bits >> i & 1) as u8) << 4
}
