//! Why a page cannot be encoded, dequantised or shrunk.

use half::bf16;

use super::FormatId;
use crate::kv::Side;

/// An operation on a page record that cannot be done. None of them leaves a half-written record
/// that could be mistaken for a page: the caller keeps the source.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FormatError {
    /// No format has this name.
    #[error("'{name}' is not a page format; the formats are {}", FormatId::names())]
    UnknownName {
        /// What was asked for.
        name: String,
    },
    /// The format is not defined for this side.
    #[error("page format {format} cannot hold {}", side_name(*.side))]
    Side {
        /// The format.
        format: FormatId,
        /// The side it lacks.
        side: Side,
    },
    /// The format is not defined for this head dimension.
    #[error("page format {format} needs a head_dim that is {rule}, got {head_dim}")]
    HeadDim {
        /// The format.
        format: FormatId,
        /// The head dimension of the model.
        head_dim: usize,
        /// What the format asks of it.
        rule: &'static str,
    },
    /// A buffer has the wrong length: a bug of the caller.
    #[error("the {what} of a {format} page must hold {expected}, got {got}")]
    Length {
        /// The format.
        format: FormatId,
        /// Which buffer, and its unit.
        what: &'static str,
        /// Elements or bytes it must have.
        expected: usize,
        /// Elements or bytes it has.
        got: usize,
    },
    /// A token range that is not made of whole tiles: a bug of the caller.
    #[error("tokens {start}..{end} are not a range of whole 16-token tiles of a 128-token page")]
    TokenRange {
        /// First token.
        start: usize,
        /// One past the last token.
        end: usize,
    },
    /// The page holds an infinity or a NaN, which no code stands for.
    #[error("token {token}, channel {channel} of the page is {value}, which no code can stand for")]
    NonFinite {
        /// Token in the block.
        token: usize,
        /// Channel in the head.
        channel: usize,
        /// The value.
        value: bf16,
    },
    /// The page holds a value outside fp16, in which zeros and ranges are kept.
    #[error(
        "token {token}, channel {channel} of the page is {value}, beyond the ±65504 of fp16 \
         metadata; keep this page at 16 bit"
    )]
    BeyondFp16 {
        /// Token in the block.
        token: usize,
        /// Channel in the head.
        channel: usize,
        /// The value.
        value: bf16,
    },
    /// The values of a group span more than fp16 can say.
    #[error(
        "{group} {index} of the page spans {min} to {max}, a range beyond the 65504 of fp16 \
         metadata; keep this page at 16 bit"
    )]
    RangeBeyondFp16 {
        /// What the group is: "channel", "token" or "group of 32".
        group: &'static str,
        /// Which one.
        index: usize,
        /// Least value.
        min: f32,
        /// Greatest value.
        max: f32,
    },
    /// The radius of a pair is outside fp16, though both of its channels are within.
    #[error(
        "the radius of pair {pair} of the page comes to {radius}, beyond the 65504 of fp16 \
         metadata; keep this page at 16 bit"
    )]
    RadiusBeyondFp16 {
        /// The first such pair.
        pair: usize,
        /// Its greatest radius.
        radius: f32,
    },
    /// The transition is not a step down a ladder.
    #[error("a {} page cannot shrink from {from} to {to}", side_name(*.side))]
    IllegalShrink {
        /// The format it has.
        from: FormatId,
        /// The format it should get.
        to: FormatId,
        /// Its side.
        side: Side,
    },
}

impl FormatError {
    /// For an element that is not finite, or beyond fp16.
    pub(crate) fn of_element(token: usize, channel: usize, value: bf16) -> Self {
        if value.is_finite() {
            FormatError::BeyondFp16 {
                token,
                channel,
                value,
            }
        } else {
            FormatError::NonFinite {
                token,
                channel,
                value,
            }
        }
    }
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::K => "keys",
        Side::V => "values",
    }
}
