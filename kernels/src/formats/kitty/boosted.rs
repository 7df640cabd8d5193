//! Kitty's pages as levels of the ladders. Layout: see `kitty`.

use std::ops::Range;

use half::bf16;

use super::super::codec::{HeadDims, LadderFormat, Level, PageFormat};
use super::super::ladder::{LadderPage, Width};
use super::super::{Codes, FormatError, RecordShape};
use super::{HEAD_DIMS, Kitty, nominal_bits};
use crate::kv::Side;

/// Keys with `SLABS` eighths of their channels at 4 bits, the rest at 2, clipped or not.
pub(crate) struct Boosted<const SLABS: usize, const CLIPPED: bool>;

impl<const SLABS: usize, const CLIPPED: bool> PageFormat for Boosted<SLABS, CLIPPED> {
    fn nominal_bits(&self) -> f32 {
        nominal_bits(SLABS)
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K]
    }

    fn head_dims(&self) -> HeadDims {
        HEAD_DIMS
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        Kitty::<SLABS>::new(shape).record_bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let mut page = LadderPage::quantise(shape, rows)?;
        page.lower(self.width());
        self.pack(&page, out);
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        Kitty::<SLABS>::new(shape).dequantise(record, tokens, out);
    }

    fn codes<'a>(&self, shape: RecordShape, record: &'a [u8]) -> Option<Codes<'a>> {
        Some(Kitty::<SLABS>::new(shape).codes(record))
    }

    fn level(&self) -> Option<Level<'_>> {
        Some(Level::Low(self))
    }
}

impl<const SLABS: usize, const CLIPPED: bool> LadderFormat for Boosted<SLABS, CLIPPED> {
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
