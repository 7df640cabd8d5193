//! `pack-quantized` of compressed-tensors: integers of four or eight bits in words of 32, row by
//! row.
//!
//! ```text
//! MODULE.weight_packed      I32 [outputs, ⌈inputs · bits / 32⌉]: input i has the bits from
//!                           bits · (i mod n) on of word i / n, n = 32 / bits
//! MODULE.weight_scale       F32, F16 or BF16: [1], [outputs, 1] or [outputs, groups]
//! MODULE.weight_zero_point  I32 [⌈outputs · bits / 32⌉, groups]: packed along the outputs; only if
//!                           not symmetric
//! MODULE.weight_shape       I64 or I32 [2]: outputs, inputs
//! MODULE.weight_g_idx       I32 [inputs]: the group of each input; groups are in order without it,
//!                           or where it has −1
//! weight = (code − zero) · scale, where 2^(bits − 1) is zero if symmetric
//! ```
//! Signed codes and zeros are stored with 2^(bits − 1) added, which the difference does not see.

use ebb_kernels::weight_formats::Codes;
use safetensors::Dtype;

use super::{QuantisedTensor, Stored, Zeros, halves};
use crate::model::error::Refusal;
use crate::model::hf::quantised::parts::{Parts, Words};
use crate::model::hf::quantised::scales::{FLOATS, Groups, Scales, Sharing};

/// What a configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// 4 or 8.
    pub(crate) bits: usize,
    pub(crate) sharing: Sharing,
    pub(crate) symmetric: bool,
    /// Whether inputs are in groups by an index.
    pub(crate) indexed: bool,
}

pub(super) fn read(parts: &mut Parts<'_>, packed: &Packed) -> Result<QuantisedTensor, Refusal> {
    let (shape, bits) = (parts.shape, packed.bits);
    let [rows, columns] = shape;
    let words = |codes: usize| codes.div_ceil(32 / bits);
    check_shape(parts)?;
    let codes = parts.take_words("weight_packed", &[rows, words(columns)])?;
    let (scales, mut groups) = Scales::read(parts, "weight_scale", packed.sharing, &FLOATS)?;
    let count = groups.count(columns);
    let (zeros, zero) = match packed.symmetric {
        true => {
            parts.has_no_zeros("weight_zero_point")?;
            (None, 1 << (bits - 1))
        }
        false => {
            let words = parts.take_words("weight_zero_point", &[words(rows), count])?;
            (Some(Zeros::Packed { words, bits }), 0)
        }
    };
    if packed.indexed || parts.get("weight_g_idx").is_some() {
        let group = Groups::indexed(parts, "weight_g_idx", count)?;
        if group.iter().all(|group| *group >= 0) {
            groups = groups.by(group);
        }
    }
    Ok(QuantisedTensor {
        shape,
        stored: Stored::Packed { words: codes, bits },
        codes: Codes::Int {
            bits: bits as u8,
            zero,
        },
        zeros,
        scales,
        groups,
    })
}

/// The shape that the codes do not show where the last word of a row is not full.
fn check_shape(parts: &mut Parts<'_>) -> Result<(), Refusal> {
    let types = [Dtype::I64, Dtype::I32];
    let (dtype, bytes) = parts.take_shaped("weight_shape", &types, &[&[2]])?;
    let found: Vec<i64> = match dtype {
        Dtype::I64 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|n| i64::from_le_bytes(*n))
            .collect(),
        _ => {
            let numbers = bytes.as_chunks().0.iter();
            numbers.map(|n| i64::from(i32::from_le_bytes(*n))).collect()
        }
    };
    if found == parts.shape.map(|size| size as i64) {
        return Ok(());
    }
    let expected = format!("{:?}, which the configuration calls for", parts.shape);
    let name = parts.name("weight_shape");
    Err(Refusal::invalid(name, format!("{found:?}"), expected))
}

/// Words of 32 bits hold their codes from the lowest bits on, and are stored little-endian: codes
/// of eight bits are a byte each, codes of four a half of one, the low one first.
pub(super) fn unpack(bytes: &[u8], bits: usize, columns: usize, first_row: usize, out: &mut [u8]) {
    let row_bytes = 4 * columns.div_ceil(32 / bits);
    let rows = bytes[first_row * row_bytes..].chunks_exact(row_bytes);
    for (codes, row) in out.chunks_exact_mut(columns).zip(rows) {
        match bits {
            4 => halves(row, codes),
            _ => codes.copy_from_slice(&row[..columns]),
        }
    }
}

/// The zero of a row's group.
pub(super) fn zero(words: &Words, bits: usize, groups: usize, row: usize, group: usize) -> f32 {
    let each = 32 / bits;
    words.code(row / each * groups + group, row % each, bits) as f32
}
