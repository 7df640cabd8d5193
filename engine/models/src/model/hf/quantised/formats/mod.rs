//! How codes lie in files. Each format's file says how its tensors are laid out, reads them, and
//! has the codec: a function from stored bytes to numbers, which knows nothing of files.

mod awq;
mod fp4;
mod fp8;
mod gptq;
mod int8;
mod packed;

use ebb_kernels::weight_formats::{Codes, PackedRows, WeightFormat};

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

impl Scheme {
    /// The form that rows of so many inputs are packed in; `None` where inputs are in groups by an
    /// index.
    pub(super) fn format(&self, inputs: usize) -> Option<WeightFormat> {
        let int = |bits: usize, symmetric: bool| Codes::Int {
            bits: bits as u8,
            zero: if symmetric { 1 << (bits - 1) } else { 0 },
        };
        let (codes, group, symmetric) = match *self {
            Self::Fp8(sharing) => (Codes::E4M3, sharing.inputs(inputs), true),
            Self::Int8 { sharing, symmetric } => {
                (int(8, symmetric), sharing.inputs(inputs), symmetric)
            }
            Self::Packed(packed) if !packed.indexed => {
                let codes = int(packed.bits, packed.symmetric);
                (codes, packed.sharing.inputs(inputs), packed.symmetric)
            }
            Self::Awq { group, zeros } => (int(4, !zeros), group.unwrap_or(inputs), !zeros),
            Self::Gptq(gptq) if !gptq.indexed => {
                let codes = int(gptq.bits, gptq.symmetric);
                (codes, gptq.group.unwrap_or(inputs), gptq.symmetric)
            }
            Self::Fp4(fp4) => (Codes::E2M1, fp4.group(), true),
            Self::Packed(_) | Self::Gptq(_) => return None,
        };
        Some(WeightFormat {
            codes,
            group: group.min(inputs).max(1),
            has_offsets: !symmetric,
        })
    }
}

/// A weight as a checkpoint stores it: `weight = (value(code) − zero) · scale`.
#[derive(Clone, Debug)]
pub(crate) struct QuantisedTensor {
    /// `[outputs, inputs]`.
    shape: [usize; 2],
    stored: Stored,
    /// What codes mean once they are unpacked.
    codes: Codes,
    /// `None` where all are 0, or the zero that `codes` has.
    zeros: Option<Zeros>,
    scales: Scales,
    groups: Groups,
}

/// Codes, in the layout of a format.
#[derive(Clone, Debug)]
enum Stored {
    /// A byte each.
    Bytes(TensorBytes),
    /// A signed byte each.
    SignedBytes(TensorBytes),
    /// Two a byte, the low half first.
    Halves(TensorBytes),
    Packed {
        words: Words,
        bits: usize,
    },
    Awq(Words),
    Gptq {
        words: Words,
        bits: usize,
    },
}

/// What is subtracted from codes, in the layout of a format.
#[derive(Clone, Debug)]
enum Zeros {
    Int8(int8::Zeros),
    Packed { words: Words, bits: usize },
    Awq(Words),
    Gptq(gptq::Zeros),
}

impl QuantisedTensor {
    /// `[outputs, inputs]`.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The form that rows are packed in; `None` where inputs are in groups by an index.
    pub(crate) fn format(&self) -> Option<WeightFormat> {
        let Groups::InOrder(size) = &self.groups else {
            return None;
        };
        Some(WeightFormat {
            codes: self.codes,
            group: (*size).min(self.shape[1]).max(1),
            has_offsets: self.zeros.is_some(),
        })
    }

    /// Packs rows from `first_row` on into all of `out`, in the form that [`Self::format`] says.
    pub(crate) fn pack(&self, first_row: usize, out: PackedRows<'_>) {
        let count = self.groups.count(self.shape[1]);
        self.unpack(first_row, out.codes);
        for (at, scale) in out.scales.iter_mut().enumerate() {
            let (row, group) = (first_row + at / count, at % count);
            *scale = self.scales.at(row, group);
            if let Some(offset) = out.offsets.get_mut(at) {
                *offset = -self.zero(row, group) * *scale;
            }
        }
    }

    /// Dequantises rows from `first_row` on into all of `out`, which is whole rows.
    pub(crate) fn dequantise(&self, first_row: usize, out: &mut [f32]) {
        let columns = self.shape[1];
        let mut codes = vec![0; out.len()];
        self.unpack(first_row, &mut codes);
        let values = self.codes.values();
        let value = |code: u8| values[usize::from(code)];
        let count = self.groups.count(columns);
        let (mut scales, mut zeros) = (vec![0.0; count], vec![0.0; count]);
        let rows = out
            .chunks_exact_mut(columns)
            .zip(codes.chunks_exact(columns));
        for (row, (out, codes)) in (first_row..).zip(rows) {
            for (group, (scale, zero)) in scales.iter_mut().zip(&mut zeros).enumerate() {
                *scale = self.scales.at(row, group);
                *zero = self.zero(row, group);
            }
            match &self.groups {
                Groups::InOrder(size) => {
                    let shared = scales.iter().zip(&zeros);
                    let groups = out.chunks_mut(*size).zip(codes.chunks(*size));
                    for ((out, codes), (scale, zero)) in groups.zip(shared) {
                        for (out, code) in out.iter_mut().zip(codes) {
                            *out = (value(*code) - zero) * scale;
                        }
                    }
                }
                Groups::Indexed { group, .. } => {
                    for ((out, code), group) in out.iter_mut().zip(codes).zip(group) {
                        let group = *group as usize;
                        *out = (value(*code) - zeros[group]) * scales[group];
                    }
                }
            }
        }
    }

    /// The codes of rows, a byte each.
    fn unpack(&self, first_row: usize, out: &mut [u8]) {
        let from = first_row * self.shape[1];
        match &self.stored {
            Stored::Bytes(bytes) => out.copy_from_slice(&bytes[from..][..out.len()]),
            Stored::SignedBytes(bytes) => int8::unpack(&bytes[from..], out),
            Stored::Halves(bytes) => halves(&bytes[from / 2..], out),
            Stored::Packed { words, bits } => {
                packed::unpack(words.bytes(), *bits, self.shape[1], first_row, out);
            }
            Stored::Awq(words) => awq::unpack(words.all(), self.shape, first_row, out),
            Stored::Gptq { words, bits } => {
                gptq::unpack(words.all(), *bits, self.shape, first_row, out);
            }
        }
    }

    /// What is subtracted from what codes mean.
    fn zero(&self, row: usize, group: usize) -> f32 {
        let [rows, columns] = self.shape;
        match &self.zeros {
            None => 0.0,
            Some(Zeros::Int8(zeros)) => zeros.at(row, group) + f32::from(int8::MIDDLE),
            Some(Zeros::Packed { words, bits }) => {
                packed::zero(words, *bits, self.groups.count(columns), row, group)
            }
            Some(Zeros::Awq(words)) => awq::zero(words, rows, row, group),
            Some(Zeros::Gptq(zeros)) => zeros.at(rows, row, group),
        }
    }
}

/// Codes of four bits, the low half of a byte first.
fn halves(bytes: &[u8], out: &mut [u8]) {
    for (pair, byte) in out.chunks_mut(2).zip(bytes) {
        for (code_out, code) in pair.iter_mut().zip([byte & 15, byte >> 4]) {
            *code_out = code;
        }
    }
}
