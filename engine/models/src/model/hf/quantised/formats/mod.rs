//! How codes lie in files. Each format's file says how its tensors are laid out, reads them, and
//! has the codec: a function from stored bytes to numbers, which knows nothing of files.

mod awq;
mod fp4;
mod fp8;
mod gptq;
mod int8;
mod packed;

use super::parts::{Parts, Words};
use super::scales::{Groups, Scales, Sharing};
use crate::model::error::Refusal;
use crate::model::hf::shards::TensorBytes;
pub(super) use fp4::Fp4;
pub(super) use gptq::Gptq;
pub(super) use packed::Packed;

/// How the weight of a module is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scheme {
    Fp8(Sharing),
    Int8 { sharing: Sharing, symmetric: bool },
    Packed(Packed),
    Awq { group: Option<usize>, zeros: bool },
    Gptq(Gptq),
    Fp4(Fp4),
}

impl Scheme {
    /// Finds the tensors of a weight and checks that they fit each other.
    pub(super) fn tensor(&self, parts: &mut Parts<'_>) -> Result<QuantisedTensor, Refusal> {
        match self {
            Self::Fp8(sharing) => fp8::read(parts, *sharing),
            Self::Int8 { sharing, symmetric } => int8::read(parts, *sharing, *symmetric),
            Self::Packed(packed) => packed::read(parts, packed),
            Self::Awq { group, zeros } => awq::read(parts, *group, *zeros),
            Self::Gptq(gptq) => gptq::read(parts, gptq),
            Self::Fp4(fp4) => fp4::read(parts, *fp4),
        }
    }
}

/// A weight as a checkpoint stores it: `weight = (code − zero) · scale`.
#[derive(Clone, Debug)]
pub(crate) struct QuantisedTensor {
    /// `[outputs, inputs]`.
    shape: [usize; 2],
    codes: Codes,
    zeros: Zeros,
    scales: Scales,
    groups: Groups,
}

/// Codes, in the layout of a format.
#[derive(Clone, Debug)]
enum Codes {
    Fp8(TensorBytes),
    Int8(TensorBytes),
    Packed { words: Words, bits: usize },
    Awq(Words),
    Gptq { words: Words, bits: usize },
    Fp4(TensorBytes),
}

/// What is subtracted from codes, in the layout of a format.
#[derive(Clone, Debug)]
enum Zeros {
    /// The same from all.
    All(f32),
    Int8(int8::Zeros),
    Packed {
        words: Words,
        bits: usize,
    },
    Awq(Words),
    Gptq(gptq::Zeros),
}

impl QuantisedTensor {
    /// `[outputs, inputs]`.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Dequantises rows from `first_row` on into all of `out`, which is whole rows.
    pub(crate) fn dequantise(&self, first_row: usize, out: &mut [f32]) {
        let columns = self.shape[1];
        self.unpack(first_row, out);
        let count = self.groups.count(columns);
        let (mut scales, mut zeros) = (vec![0.0; count], vec![0.0; count]);
        for (row, values) in (first_row..).zip(out.chunks_exact_mut(columns)) {
            for (group, (scale, zero)) in scales.iter_mut().zip(&mut zeros).enumerate() {
                *scale = self.scales.at(row, group);
                *zero = self.zero(row, group);
            }
            match &self.groups {
                Groups::InOrder(size) => {
                    let shared = scales.iter().zip(&zeros);
                    for (values, (scale, zero)) in values.chunks_mut(*size).zip(shared) {
                        for value in values {
                            *value = (*value - zero) * scale;
                        }
                    }
                }
                Groups::Indexed { group, .. } => {
                    for (value, group) in values.iter_mut().zip(group) {
                        let group = *group as usize;
                        *value = (*value - zeros[group]) * scales[group];
                    }
                }
            }
        }
    }

    /// Rows of codes as numbers.
    fn unpack(&self, first_row: usize, out: &mut [f32]) {
        let [_, columns] = self.shape;
        match &self.codes {
            Codes::Fp8(bytes) => fp8::unpack(&bytes[first_row * columns..], out),
            Codes::Int8(bytes) => int8::unpack(&bytes[first_row * columns..], out),
            Codes::Packed { words, bits } => {
                packed::unpack(words.bytes(), *bits, columns, first_row, out);
            }
            Codes::Awq(words) => awq::unpack(words.all(), self.shape, first_row, out),
            Codes::Gptq { words, bits } => {
                gptq::unpack(words.all(), *bits, self.shape, first_row, out);
            }
            Codes::Fp4(bytes) => fp4::unpack(&bytes[first_row * columns / 2..], out),
        }
    }

    fn zero(&self, row: usize, group: usize) -> f32 {
        let [rows, columns] = self.shape;
        match &self.zeros {
            Zeros::All(zero) => *zero,
            Zeros::Int8(zeros) => zeros.at(row, group),
            Zeros::Packed { words, bits } => {
                packed::zero(words, *bits, self.groups.count(columns), row, group)
            }
            Zeros::Awq(words) => awq::zero(words, rows, row, group),
            Zeros::Gptq(zeros) => zeros.at(rows, row, group),
        }
    }
}

/// Codes of four bits, the low half of a byte first.
fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    for (pair, byte) in out.chunks_mut(2).zip(bytes) {
        for (value_out, code) in pair.iter_mut().zip([byte & 15, byte >> 4]) {
            *value_out = value(code);
        }
    }
}
