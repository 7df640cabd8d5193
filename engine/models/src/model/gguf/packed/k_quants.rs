//! The types with super-blocks of 256 elements.

use super::Block;
use crate::model::gguf::dequant::blocks32::nibbles;
use crate::model::gguf::dequant::half_at;
use crate::model::gguf::dequant::k_quants::scale_and_min;

pub(super) fn q2_k(block: &[u8; 84], out: Block<'_, 256, 16, 16>) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (sub, out) in out.codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (half, quarter) = (sub / 8, sub % 8 / 2);
        let codes = &codes[32 * half + 16 * (sub % 2)..][..16];
        for (out, byte) in out.iter_mut().zip(codes) {
            *out = byte >> (2 * quarter) & 3;
        }
    }
    for (sub, scale) in scales.iter().enumerate() {
        out.scales[sub] = d * f32::from(scale & 15);
        out.offsets[sub] = -(dmin * f32::from(scale >> 4));
    }
}

pub(super) fn q3_k(block: &[u8; 110], out: Block<'_, 256, 16, 0>) {
    let (high, low, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (sub, codes) in out.codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let bits = scales[sub % 8] >> (4 * (sub / 8)) & 15;
        let scale = bits | (scales[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4;
        out.scales[sub] = d * (f32::from(scale) - 32.0);
        let (half, quarter, first) = (sub / 8, sub % 8 / 2, 16 * (sub % 2));
        let (low, high) = (&low[32 * half + first..][..16], &high[first..][..16]);
        for (code, (low, high)) in codes.iter_mut().zip(low.iter().zip(high)) {
            *code = low >> (2 * quarter) & 3 | (high >> (sub / 2) & 1) << 2;
        }
    }
}

pub(super) fn q4_k(block: &[u8; 144], out: Block<'_, 256, 8, 8>) {
    with_scales(block, &block[16..], out, |_, _, code| code);
}

pub(super) fn q5_k(block: &[u8; 176], out: Block<'_, 256, 8, 8>) {
    let high = &block[16..48];
    with_scales(block, &block[48..], out, |sub, i, code| {
        code | (high[i] >> sub & 1) << 4
    });
}

/// What Q4_K and Q5_K share; `code(sub-block, element, low four bits)` completes a code.
#[inline(always)]
fn with_scales<const B: usize>(
    block: &[u8; B],
    codes: &[u8],
    out: Block<'_, 256, 8, 8>,
    code: impl Fn(usize, usize, u8) -> u8,
) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (sub, out_codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], sub);
        out.scales[sub] = d * f32::from(scale);
        out.offsets[sub] = -(dmin * f32::from(min));
        let bytes = &codes[32 * (sub / 2)..][..32];
        for (i, (out, byte)) in out_codes.iter_mut().zip(bytes).enumerate() {
            *out = code(sub, i, byte >> (4 * (sub % 2)) & 15);
        }
    }
}

pub(super) fn q6_k(block: &[u8; 210], out: Block<'_, 256, 16, 0>) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (scale_out, scale) in out.scales.iter_mut().zip(scales) {
        *scale_out = d * f32::from(*scale as i8);
    }
    for (part, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (part / 4, part % 4);
        let low = &low[64 * half + 32 * (quarter % 2)..][..32];
        let high = &high[32 * half..][..32];
        for (code, (low, high)) in codes.iter_mut().zip(low.iter().zip(high)) {
            *code = low >> (4 * (quarter / 2)) & 15 | (high >> (2 * quarter) & 3) << 4;
        }
    }
}

pub(super) fn iq4_xs(block: &[u8; 136], out: Block<'_, 256, 8, 0>) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    let (low, bytes) = (&block[4..8], block[8..].as_chunks::<16>().0);
    let codes = out.codes.as_chunks_mut::<32>().0;
    for (sub, (codes, bytes)) in codes.iter_mut().zip(bytes).enumerate() {
        let low = low[sub / 2] >> (4 * (sub % 2)) & 15;
        let scale = low | ((high >> (2 * sub) & 3) as u8) << 4;
        out.scales[sub] = d * (f32::from(scale) - 32.0);
        nibbles(bytes, codes, |_, code| code);
    }
}
