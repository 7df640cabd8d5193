//! Encoded tensors → codes, scales and offsets, block by block.
//!
//! Layouts are those that [`dequant`](super::dequant) writes down. A weight is `scale · value(code)
//! + offset` in f32, which is to the bit what is dequantised, but for the sign of zero.

mod blocks32;
mod k_quants;

use ebb_kernels::weight_formats::{Codes, PackedRows, WeightFormat};

use super::ggml_type::GgmlType;

/// The form that a type's rows are packed in; `None` of types without blocks.
pub fn packed_format(kind: GgmlType) -> Option<WeightFormat> {
    let int = |bits, zero| Codes::Int { bits, zero };
    let (codes, group, has_offsets) = match kind {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => return None,
        GgmlType::Q8_0 => (int(8, 128), 32, false),
        GgmlType::Q4_0 => (int(4, 8), 32, false),
        GgmlType::Q4_1 => (int(4, 0), 32, true),
        GgmlType::Q5_0 => (int(5, 16), 32, false),
        GgmlType::Q5_1 => (int(5, 0), 32, true),
        GgmlType::Q2_K => (int(2, 0), 16, true),
        GgmlType::Q3_K => (int(3, 4), 16, false),
        GgmlType::Q4_K => (int(4, 0), 32, true),
        GgmlType::Q5_K => (int(5, 0), 32, true),
        GgmlType::Q6_K => (int(6, 32), 16, false),
        GgmlType::IQ4_NL | GgmlType::IQ4_XS => (Codes::Iq4, 32, false),
        GgmlType::MXFP4 => (Codes::E2M1, 32, false),
    };
    Some(WeightFormat {
        codes,
        group,
        has_offsets,
    })
}

/// Packs `data`, encoded as `kind`, in the form that [`packed_format`] says.
///
/// # Panics
/// If `out` is not a whole number of blocks, `data` not as many, or the type has none.
pub fn pack(kind: GgmlType, data: &[u8], out: PackedRows<'_>) {
    match kind {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {
            unreachable!("{kind:?} is not packed")
        }
        GgmlType::Q8_0 => each_block(data, out, blocks32::q8_0),
        GgmlType::Q4_0 => each_block(data, out, blocks32::with_scale),
        GgmlType::Q4_1 => each_block(data, out, blocks32::q4_1),
        GgmlType::Q5_0 => each_block(data, out, blocks32::q5_0),
        GgmlType::Q5_1 => each_block(data, out, blocks32::q5_1),
        GgmlType::Q2_K => each_block(data, out, k_quants::q2_k),
        GgmlType::Q3_K => each_block(data, out, k_quants::q3_k),
        GgmlType::Q4_K => each_block(data, out, k_quants::q4_k),
        GgmlType::Q5_K => each_block(data, out, k_quants::q5_k),
        GgmlType::Q6_K => each_block(data, out, k_quants::q6_k),
        GgmlType::IQ4_NL => each_block(data, out, blocks32::with_scale),
        GgmlType::IQ4_XS => each_block(data, out, k_quants::iq4_xs),
        GgmlType::MXFP4 => each_block(data, out, blocks32::mxfp4),
    }
}

/// A block of `N` codes: its `G` groups' scales, and `O` offsets.
struct Block<'a, const N: usize, const G: usize, const O: usize> {
    codes: &'a mut [u8; N],
    scales: &'a mut [f32; G],
    offsets: &'a mut [f32; O],
}

/// Runs `pack` over blocks of `B` bytes.
fn each_block<const B: usize, const N: usize, const G: usize, const O: usize>(
    data: &[u8],
    out: PackedRows<'_>,
    pack: impl Fn(&[u8; B], Block<'_, N, G, O>),
) {
    let (blocks, codes) = (data.as_chunks::<B>().0, out.codes.as_chunks_mut::<N>().0);
    let scales = out.scales.as_chunks_mut::<G>().0;
    assert!(
        blocks.len() == codes.len() && blocks.len() == scales.len(),
        "{} blocks do not make {} groups",
        blocks.len(),
        scales.len(),
    );
    let mut offsets = out.offsets;
    for ((block, codes), scales) in blocks.iter().zip(codes).zip(scales) {
        let Some((of_block, rest)) = offsets.split_first_chunk_mut::<O>() else {
            unreachable!("offsets are as many as scales, or none");
        };
        offsets = rest;
        pack(
            block,
            Block {
                codes,
                scales,
                offsets: of_block,
            },
        );
    }
}
