//! `int4t`, `int2t`: keys with a zero and a range per token, for comparison; static.
//!
//! Layout: `[zero][range][plane]`, see `affine::uniform`, with 128 groups.

use std::ops::Range;

use half::bf16;

use crate::formats::affine::{Grouping, Uniform};
use crate::formats::codec::PageFormat;
use crate::formats::{FormatError, RecordShape};
use crate::kv::Side;

/// Keys in codes of `BITS`, quantised by token.
pub(crate) struct ByToken<const BITS: u32>;

impl<const BITS: u32> ByToken<BITS> {
    const fn codec(shape: RecordShape) -> Uniform<BITS> {
        Uniform {
            grouping: Grouping::Token,
            shape,
        }
    }
}

impl<const BITS: u32> PageFormat for ByToken<BITS> {
    fn nominal_bits(&self) -> f32 {
        BITS as f32
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K]
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        Self::codec(shape).record_bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        Self::codec(shape).encode(rows, out)
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        Self::codec(shape).dequantise(record, tokens, out);
    }
}
