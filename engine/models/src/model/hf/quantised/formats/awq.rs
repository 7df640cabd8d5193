//! AutoAWQ's `gemm`: integers of four bits, eight outputs a word.
//!
//! ```text
//! MODULE.qweight  I32 [inputs, outputs / 8]: place p of word w has output 8w + ORDER[p]
//! MODULE.qzeros   I32 [groups, outputs / 8]: likewise
//! MODULE.scales   F16, BF16 or F32 [groups, outputs]
//! weight = (code − zero) · scale
//! ```

use ebb_kernels::weight_formats::Codes;

use super::{QuantisedTensor, Stored, Zeros};
use crate::model::error::Refusal;
use crate::model::hf::quantised::parts::{Parts, Words};
use crate::model::hf::quantised::scales::{Groups, Scales, group_size};

const BITS: usize = 4;

/// The outputs of a word from its lowest bits on.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The place in a word of each of its outputs.
const PLACE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

pub(super) fn read(
    parts: &mut Parts<'_>,
    group: Option<usize>,
    zeros: bool,
) -> Result<QuantisedTensor, Refusal> {
    let shape = parts.shape;
    let [rows, columns] = shape;
    let words = parts.words("outputs", rows, BITS)?;
    let size = group_size(parts, group.unwrap_or(columns))?;
    let count = columns / size;
    let codes = parts.take_words("qweight", &[columns, words])?;
    let scales = Scales::read_by_groups(parts, "scales", count)?;
    let (zeros, zero) = match zeros {
        true => {
            let zeros = parts.take_words("qzeros", &[count, words])?;
            (Some(Zeros::Awq(zeros)), 0)
        }
        false => {
            parts.has_no_zeros("qzeros")?;
            (None, 1 << (BITS - 1))
        }
    };
    Ok(QuantisedTensor {
        shape,
        stored: Stored::Awq(codes),
        codes: Codes::Int {
            bits: BITS as u8,
            zero,
        },
        zeros,
        scales,
        groups: Groups::InOrder(size),
    })
}

/// Inputs whose words are read together, so that codes are written in runs.
const TOGETHER: usize = 16;

/// Rows of the weight from `first_row` on, which are columns of the words.
pub(super) fn unpack(words: &[[u8; 4]], shape: [usize; 2], first_row: usize, out: &mut [u8]) {
    let [rows, columns] = shape;
    let (each_line, end) = (rows / 8, first_row + out.len() / columns);
    for word in first_row / 8..end.div_ceil(8) {
        for (run, lines) in words.chunks(TOGETHER * each_line).enumerate() {
            let mut codes = [0; TOGETHER];
            for (codes, line) in codes.iter_mut().zip(lines.chunks_exact(each_line)) {
                *codes = u32::from_le_bytes(line[word]);
            }
            let count = lines.len() / each_line;
            for (place, output) in ORDER.iter().enumerate() {
                let row = 8 * word + output;
                if (first_row..end).contains(&row) {
                    let at = (row - first_row) * columns + run * TOGETHER;
                    for (code, codes) in out[at..][..count].iter_mut().zip(codes) {
                        *code = (codes >> (place * BITS) & 15) as u8;
                    }
                }
            }
        }
    }
}

/// The zero of a row's group.
pub(super) fn zero(words: &Words, rows: usize, row: usize, group: usize) -> f32 {
    words.code(group * (rows / 8) + row / 8, PLACE[row % 8], BITS) as f32
}
