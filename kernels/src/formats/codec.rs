//! What every format implements, and what the ladder asks of the formats on it.

use std::ops::Range;

use half::bf16;

use super::ladder::{LadderPage, Width};
use super::{Codes, FormatError, MAX_HEAD_DIM, RecordShape};
use crate::kv::Side;

/// A page format: layout and codec of one record.
///
/// Implementations may rely on what [`FormatId`](super::FormatId) checks first: a legal side, a
/// supported head dimension, buffers of exactly the right length and a token range of whole tiles.
pub(crate) trait PageFormat: Sync {
    /// Bits of code per element, without metadata and index.
    fn nominal_bits(&self) -> f32;

    /// Sides it can hold.
    fn sides(&self) -> &'static [Side];

    /// Whether its codes are of RoPE's pairs of channels, (i, i + head_dim / 2).
    fn is_of_rope_pairs(&self) -> bool {
        false
    }

    /// Head dimensions that records exist of.
    fn head_dims(&self) -> HeadDims {
        HeadDims::SIXTEENS
    }

    /// Bytes of a record: a multiple of 16.
    fn record_bytes(&self, shape: RecordShape) -> usize;

    /// Encodes `rows`, `[128][head_dim]`.
    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError>;

    /// Dequantises the tokens of a range into `out`, `[tokens][head_dim]`.
    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]);

    /// The codes of a record, if readers can compute on them; else they dequantise it.
    fn codes<'a>(&self, _: RecordShape, _: &'a [u8]) -> Option<Codes<'a>> {
        None
    }

    /// Its precision level on the ladders; static formats have none.
    fn level(&self) -> Option<Level<'_>> {
        None
    }
}

/// Head dimensions that a format has records of.
#[derive(Clone, Copy)]
pub(crate) struct HeadDims {
    /// In words, to follow "a head_dim that is".
    pub(crate) rule: &'static str,
    /// Whether one is among them.
    pub(crate) has: fn(usize) -> bool,
}

impl HeadDims {
    /// Whole tiles of tensor cores.
    const SIXTEENS: Self = Self {
        rule: "a multiple of 16 up to 256",
        has: |d| d.is_multiple_of(16) && (16..=MAX_HEAD_DIM).contains(&d),
    };
    /// Groups of 32 channels, or pairs in whole tiles.
    pub(crate) const THIRTY_TWOS: Self = Self {
        rule: "a multiple of 32 up to 256",
        has: |d| d.is_multiple_of(32) && (32..=MAX_HEAD_DIM).contains(&d),
    };
}

/// A format's precision level on a ladder.
pub(crate) enum Level<'a> {
    /// The model's own 16-bit rows.
    Top,
    /// One that pages shrink to.
    Low(&'a dyn LadderFormat),
}

/// A level below 16 bit: turns records into codes in natural order and back.
pub(crate) trait LadderFormat {
    /// Width of its codes.
    fn width(&self) -> Width;

    /// Reads a record.
    fn unpack(&self, shape: RecordShape, record: &[u8]) -> LadderPage;

    /// Writes a page of this width.
    fn pack(&self, page: &LadderPage, out: &mut [u8]);
}
