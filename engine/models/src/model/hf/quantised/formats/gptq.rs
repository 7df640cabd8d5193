//! AutoGPTQ's and GPTQModel's layout: integers of four or eight bits, as many inputs a word as fit.
//!
//! ```text
//! MODULE.qweight  I32 [inputs · bits / 32, outputs]: place p of line l has input l · n + p,
//!                 n = 32 / bits
//! MODULE.qzeros   I32 [groups, outputs · bits / 32]: place p of word w has output w · n + p
//! MODULE.scales   F16, BF16 or F32 [groups, outputs]
//! MODULE.g_idx    I32 [inputs]: the group of each input; in order without it
//! weight = (code − zero) · scale
//! ```
//! The last group may have fewer inputs. The first version of the format (`checkpoint_format:
//! gptq`) stores zeros less one; `gptq_v2` stores them as they are. The libraries subtract the ones
//! of a word at once, so that a zero of 0 borrows from the next place. Adding them at once gives
//! back what was there.

use ebb_kernels::weight_formats::Codes;

use super::{QuantisedTensor, Stored, Zeros as AnyZeros};
use crate::model::error::Refusal;
use crate::model::hf::quantised::parts::{Parts, Words};
use crate::model::hf::quantised::scales::{Groups, Scales, group_size};

/// What a configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gptq {
    /// 4 or 8.
    pub(crate) bits: usize,
    /// Inputs of a group; all of them where there is none.
    pub(crate) group: Option<usize>,
    /// Whether inputs are in groups by an index.
    pub(crate) indexed: bool,
    /// Whether zeros are stored less one.
    pub(crate) zeros_less_one: bool,
    /// Whether zeros are said to be the middle of the codes. They are stored all the same.
    pub(crate) symmetric: bool,
}

/// Zeros of groups.
#[derive(Clone, Debug)]
pub(super) struct Zeros {
    words: Words,
    bits: usize,
    less_one: bool,
}

pub(super) fn read(parts: &mut Parts<'_>, gptq: &Gptq) -> Result<QuantisedTensor, Refusal> {
    let (shape, bits) = (parts.shape, gptq.bits);
    let [rows, columns] = shape;
    let lines = parts.words("inputs", columns, bits)?;
    let words = parts.words("outputs", rows, bits)?;
    let size = match gptq.group {
        Some(size) if (1..columns).contains(&size) => size,
        size => group_size(parts, size.unwrap_or(columns))?,
    };
    let count = columns.div_ceil(size);
    let codes = parts.take_words("qweight", &[lines, rows])?;
    let scales = Scales::read_by_groups(parts, "scales", count)?;
    let zeros = Zeros {
        words: parts.take_words("qzeros", &[count, words])?,
        bits,
        less_one: gptq.zeros_less_one,
    };
    let common = zeros.common();
    let groups = match gptq.indexed || parts.get("g_idx").is_some() {
        true => {
            let group = Groups::indexed(parts, "g_idx", count)?;
            // −1 is no group.
            if group.contains(&-1) {
                let field = format!("a number in {}", parts.name("g_idx"));
                return Err(Refusal::invalid(field, -1, format!("groups below {count}")));
            }
            Groups::InOrder(size).by(group)
        }
        false => Groups::InOrder(size),
    };
    Ok(QuantisedTensor {
        shape,
        stored: Stored::Gptq { words: codes, bits },
        codes: Codes::Int {
            bits: bits as u8,
            zero: common.unwrap_or(0),
        },
        zeros: common.is_none().then_some(AnyZeros::Gptq(zeros)),
        scales,
        groups,
    })
}

/// Rows of the weight from `first_row` on, which are columns of the words.
pub(super) fn unpack(
    words: &[[u8; 4]],
    bits: usize,
    shape: [usize; 2],
    first_row: usize,
    out: &mut [u8],
) {
    let [rows, columns] = shape;
    let (each, mask) = (32 / bits, (1 << bits) - 1);
    let count = out.len() / columns;
    for (line, words) in words.chunks_exact(rows).enumerate() {
        for (row, word) in words[first_row..][..count].iter().enumerate() {
            let word = u32::from_le_bytes(*word);
            let codes = &mut out[row * columns + line * each..][..each];
            for (place, code) in codes.iter_mut().enumerate() {
                *code = (word >> (place * bits) & mask) as u8;
            }
        }
    }
}

impl Zeros {
    /// The zero of a row's group.
    pub(super) fn at(&self, rows: usize, row: usize, group: usize) -> f32 {
        let each = 32 / self.bits;
        let word = self.word(group * (rows / each) + row / each);
        self.code(word, row % each) as f32
    }

    /// The zero of all groups, if they have one in common: that of symmetric codes.
    fn common(&self) -> Option<u8> {
        let all = self.words.all();
        let first = all.first()?;
        let word = self.word(0);
        let zero = self.code(word, 0);
        let same = (1..32 / self.bits).all(|place| self.code(word, place) == zero);
        (same && all.iter().all(|word| word == first)).then_some(zero as u8)
    }

    /// A word of zeros as they are.
    fn word(&self, index: usize) -> u32 {
        let stored = u32::from_le_bytes(self.words.all()[index]);
        // A one in each place.
        let ones = match self.bits {
            4 => 0x1111_1111,
            _ => 0x0101_0101,
        };
        stored.wrapping_add(if self.less_one { ones } else { 0 })
    }

    fn code(&self, word: u32, place: usize) -> u32 {
        word >> (place * self.bits) & ((1 << self.bits) - 1)
    }
}
