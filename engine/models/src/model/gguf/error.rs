//! Why a GGUF file was refused.

use crate::model::lfs::LFS_ADVICE;

/// A GGUF file that cannot be used; each variant's sentence names what is wrong where.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum GgufError {
    /// The file does not begin with `GGUF`.
    #[error("the file does not start with the letters GGUF, so it is not a GGUF file")]
    NotGguf,
    /// The file stands for one that has not been fetched.
    #[error("{LFS_ADVICE}")]
    LfsPointer,
    /// A version of the format other than 3 (or 2, which has the same layout).
    #[error("GGUF version {found} is not supported; supported is version 3 (and 2), little-endian")]
    Version {
        /// The version as it stands in the file.
        found: u32,
    },
    /// The parts of a split file that do not make one.
    #[error("the file is split, and {problem}")]
    Split {
        /// What is wrong with them.
        problem: String,
    },
    /// A part of a split file that is refused.
    #[error("its part {name}: {reason}")]
    Part {
        /// The part's file.
        name: String,
        /// Why.
        reason: Box<GgufError>,
    },
    /// The file ends before something it announces.
    #[error(
        "the file is truncated or corrupt: {what} at byte {offset} needs {needed} bytes, and \
         {left} are left"
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where in the file.
        offset: usize,
        /// How many bytes it should have.
        needed: u64,
        /// How many there are.
        left: usize,
    },
    /// A count or length beyond every real model.
    #[error(
        "the file announces {found} {what}; the most accepted is {limit}, so it is corrupt or not \
         a language model"
    )]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The number in the file.
        found: u64,
        /// The most accepted.
        limit: u64,
    },
    /// A text longer than every real one.
    #[error(
        "{what} at byte {offset} should have {found} bytes; the most accepted is {limit}, so the \
         file is corrupt"
    )]
    TooLong {
        /// What was being read.
        what: &'static str,
        /// Where in the file.
        offset: usize,
        /// Its length in the file.
        found: u64,
        /// The most accepted.
        limit: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} at byte {offset} is not UTF-8 text; the file is corrupt")]
    NotUtf8 {
        /// What was being read.
        what: &'static str,
        /// Where in the file.
        offset: usize,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("the boolean at byte {offset} is {found}, not 0 or 1; the file is corrupt")]
    Boolean {
        /// Where in the file.
        offset: usize,
        /// The byte there.
        found: u8,
    },
    /// A metadata value of an unknown or unsupported type.
    #[error(
        "metadata `{key}` has value type {found}; supported are the scalar types 0 to 12 and \
         arrays of them (no nested arrays)"
    )]
    ValueType {
        /// The metadata key.
        key: String,
        /// The type id in the file.
        found: u32,
    },
    /// A key or tensor that occurs twice.
    #[error("{what} `{name}` occurs twice; the file is corrupt")]
    Duplicate {
        /// Which kind of name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A metadata key that has to be there.
    #[error("metadata `{key}` is missing; {needed_for} needs it")]
    Missing {
        /// The metadata key.
        key: String,
        /// What it is needed for.
        needed_for: &'static str,
    },
    /// A metadata value whose type or range is not the one its key calls for.
    #[error("metadata `{key}` is {found}; expected {expected}")]
    Value {
        /// The metadata key.
        key: String,
        /// What the file holds.
        found: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// A tensor of a type that has no dequantiser here.
    #[error(
        "tensor `{tensor}` has type {found}; supported are {}",
        super::GgmlType::names()
    )]
    TensorType {
        /// The tensor's name.
        tensor: String,
        /// Its type as the format names it.
        found: String,
    },
    /// A tensor whose shape or place in the file is impossible.
    #[error("tensor `{tensor}` {problem}; the file is corrupt")]
    Tensor {
        /// The tensor's name.
        tensor: String,
        /// What is impossible about it.
        problem: String,
    },
}
