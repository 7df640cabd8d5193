//! The types with blocks of 32 elements.

use ebb_kernels::weight_formats::e8m0;

use super::Block;
use crate::model::gguf::dequant::blocks32::{fifth, fifth_bits, nibbles};
use crate::model::gguf::dequant::half_at;

/// A scale and nothing else.
type Scaled<'a> = Block<'a, 32, 1, 0>;

/// A scale and a minimum.
type Offset<'a> = Block<'a, 32, 1, 1>;

/// Signed codes become codes from 0 on.
pub(super) fn q8_0(block: &[u8; 34], out: Scaled<'_>) {
    *out.scales = [half_at(block, 0)];
    for (out, code) in out.codes.iter_mut().zip(&block[2..]) {
        *out = code ^ 0x80;
    }
}

/// Q4_0 and IQ4_NL, which differ in what codes mean.
pub(super) fn with_scale(block: &[u8; 18], out: Scaled<'_>) {
    *out.scales = [half_at(block, 0)];
    nibbles(&block[2..], out.codes, |_, code| code);
}

pub(super) fn q4_1(block: &[u8; 20], out: Offset<'_>) {
    (*out.scales, *out.offsets) = ([half_at(block, 0)], [half_at(block, 2)]);
    nibbles(&block[4..], out.codes, |_, code| code);
}

pub(super) fn q5_0(block: &[u8; 22], out: Scaled<'_>) {
    *out.scales = [half_at(block, 0)];
    let high = fifth_bits(&block[2..6]);
    nibbles(&block[6..], out.codes, |i, code| code | fifth(high, i));
}

pub(super) fn q5_1(block: &[u8; 24], out: Offset<'_>) {
    (*out.scales, *out.offsets) = ([half_at(block, 0)], [half_at(block, 2)]);
    let high = fifth_bits(&block[4..8]);
    nibbles(&block[8..], out.codes, |i, code| code | fifth(high, i));
}

pub(super) fn mxfp4(block: &[u8; 17], out: Scaled<'_>) {
    *out.scales = [e8m0(block[0])];
    nibbles(&block[1..], out.codes, |_, code| code);
}
