//! Encoded tensors → bf16, block by block, with f32 in between.
//!
//! Every decoder computes what GGML's own `dequantize_row_*` computes, in the same order of
//! operations in f32; one rounding to bf16 (to nearest, ties to even) follows. Layouts are those
//! of `ggml-common.h` (<https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h>).

pub(super) mod blocks32;
pub(super) mod k_quants;
mod tables;

use ebb_kernels::bf16;
use half::f16;

use super::ggml_type::GgmlType;

/// Decodes `data`, encoded as `kind`, into `out`.
///
/// # Panics
/// If `out` is not a whole number of blocks or `data` not as many blocks.
pub fn dequantize(kind: GgmlType, data: &[u8], out: &mut [bf16]) {
    let (elements, bytes) = (kind.block_elements(), kind.block_bytes());
    assert!(
        out.len().is_multiple_of(elements) && data.len() == out.len() / elements * bytes,
        "{} bytes of {kind:?} do not decode to {} elements",
        data.len(),
        out.len(),
    );
    match kind {
        GgmlType::F32 => each_block(data, out, |block, out| *out = [f32::from_le_bytes(*block)]),
        GgmlType::F16 => {
            each_block(data, out, |block, out| {
                *out = [f16::from_le_bytes(*block).to_f32()]
            });
        }
        GgmlType::BF16 => {
            for (bytes, out) in data.as_chunks().0.iter().zip(out) {
                *out = bf16::from_le_bytes(*bytes);
            }
        }
        GgmlType::Q8_0 => each_block(data, out, blocks32::q8_0),
        GgmlType::Q4_0 => each_block(data, out, blocks32::q4_0),
        GgmlType::Q4_1 => each_block(data, out, blocks32::q4_1),
        GgmlType::Q5_0 => each_block(data, out, blocks32::q5_0),
        GgmlType::Q5_1 => each_block(data, out, blocks32::q5_1),
        GgmlType::Q2_K => each_block(data, out, k_quants::q2_k),
        GgmlType::Q3_K => each_block(data, out, k_quants::q3_k),
        GgmlType::Q4_K => each_block(data, out, k_quants::q4_k),
        GgmlType::Q5_K => each_block(data, out, k_quants::q5_k),
        GgmlType::Q6_K => each_block(data, out, k_quants::q6_k),
        GgmlType::IQ4_NL => each_block(data, out, tables::iq4_nl),
        GgmlType::IQ4_XS => each_block(data, out, tables::iq4_xs),
        GgmlType::MXFP4 => each_block(data, out, tables::mxfp4),
    }
}

/// Runs `decode` over blocks of `B` bytes that hold `N` elements each, and rounds.
fn each_block<const B: usize, const N: usize>(
    data: &[u8],
    out: &mut [bf16],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let mut values = [0.0; N];
    for (block, out) in data.as_chunks().0.iter().zip(out.as_chunks_mut::<N>().0) {
        decode(block, &mut values);
        for (out, value) in out.iter_mut().zip(values) {
            *out = bf16::from_f32(value);
        }
    }
}

/// The fp16 number at byte `at` of a block.
pub(super) fn half_at<const B: usize>(block: &[u8; B], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
