//! Weight formats: matrices as codes of a few bits, and scales that neighbouring inputs share.
//!
//! Checkpoints pack weights in some twenty ways. They all say the same thing, so backends get it in
//! one form: a code for each weight, and for each group of inputs of an output a scale and perhaps
//! an offset,
//!
//! `weight = scale · value(code) + offset`
//!
//! in f32. A [`WeightSource`](crate::model::WeightSource) hands out rows in that form
//! ([`PackedRows`]), and each backend lays them out for its own products. Rounded to bf16, the
//! weights are what the source's `read_rows` gives, up to roundings of f32.

mod floats;
mod name;
mod quantise;
mod quantised;
mod tensor;

pub use floats::{E2M1, E4M3, e8m0, nearest_e2m1, nearest_e4m3};
pub use name::UnknownQuantisation;
pub use quantise::Quantisation;
pub use quantised::QuantisedWeights;
pub use tensor::{PackedRows, PackedTensor};

/// How a weight matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightFormat {
    /// What codes mean.
    pub codes: Codes,
    /// Inputs of an output that share a scale and an offset. The last group may have fewer.
    pub group: usize,
    /// Whether groups have offsets; without, they are 0.
    pub has_offsets: bool,
}

/// What the codes of a format mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Integers of 2 to 8 bits: `value = code − zero`.
    Int {
        /// Bits of a code.
        bits: u8,
        /// The code of 0.
        zero: u8,
    },
    /// Floats of eight bits: sign, four of exponent (bias 7), three of mantissa; no infinities.
    E4M3,
    /// Floats of four bits: sign, two of exponent (bias 1), one of mantissa.
    E2M1,
    /// GGML's table of sixteen values, closer together around zero ([`IQ4_VALUES`]).
    Iq4,
}

/// The values of [`Codes::Iq4`].
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

impl Codes {
    /// Bits of a code.
    pub fn bits(self) -> usize {
        match self {
            Self::Int { bits, .. } => usize::from(bits),
            Self::E4M3 => 8,
            Self::E2M1 | Self::Iq4 => 4,
        }
    }

    /// What a code means, which has no other bits than [`Codes::bits`].
    pub fn value(self, code: u8) -> f32 {
        match self {
            Self::Int { zero, .. } => f32::from(code) - f32::from(zero),
            Self::E4M3 => E4M3[usize::from(code)],
            Self::E2M1 => E2M1[usize::from(code)],
            Self::Iq4 => f32::from(IQ4_VALUES[usize::from(code)]),
        }
    }

    /// The values of all codes.
    pub fn values(self) -> Vec<f32> {
        let count = 1usize << self.bits();
        (0..count).map(|code| self.value(code as u8)).collect()
    }
}

impl WeightFormat {
    /// Groups of a row of so many inputs.
    pub fn groups(&self, inputs: usize) -> usize {
        inputs.div_ceil(self.group)
    }
}
