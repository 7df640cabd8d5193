//! Kitty with an eighth of the key channels at 4 bit, the rest at 2. Layout: see `kitty`.

use std::ops::Range;

use half::bf16;

use super::codec::{LadderFormat, PageFormat, Rung};
use super::kitty::{self, Kitty};
use super::ladder::{LadderPage, Width};
use super::{FormatError, RecordShape};
use crate::kv::Side;

/// Codec of `kitty12c` and, not clipped, of `kitty12`.
pub(crate) struct Kitty12<const CLIPPED: bool>;

/// Eighths of the channels that are boosted.
const SLABS: usize = 1;

impl<const CLIPPED: bool> PageFormat for Kitty12<CLIPPED> {
    fn nominal_bits(&self) -> f32 {
        2.25
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K]
    }

    fn head_dim_rule(&self) -> &'static str {
        kitty::HEAD_DIM_RULE
    }

    fn supports(&self, shape: RecordShape) -> bool {
        kitty::supports(shape.head_dim)
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        Kitty::<SLABS>::new(shape).record_bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        Kitty::<SLABS>::new(shape).encode(CLIPPED, rows, out)
    }

    fn decode(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        Kitty::<SLABS>::new(shape).decode(record, tokens, out);
    }

    fn rung(&self) -> Option<Rung<'_>> {
        Some(Rung::Low(self))
    }
}

impl<const CLIPPED: bool> LadderFormat for Kitty12<CLIPPED> {
    fn width(&self) -> Width {
        Width::two(SLABS, CLIPPED)
    }

    fn unpack(&self, shape: RecordShape, record: &[u8]) -> LadderPage {
        Kitty::<SLABS>::new(shape).unpack(CLIPPED, record)
    }

    fn pack(&self, page: &LadderPage, out: &mut [u8]) {
        Kitty::<SLABS>::new(page.shape).pack(page, out);
    }
}
