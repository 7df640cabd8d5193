//! Levels of the ladders whose codes all have one width.
//!
//! Layout: `[zero][range][plane]`, see `affine::uniform`.

use std::ops::Range;

use half::bf16;

use super::super::affine::Uniform;
use super::super::codec::{LadderFormat, Level, PageFormat};
use super::super::{FormatError, RecordShape};
use super::{LadderPage, Width};
use crate::kv::Side;

/// Codes of `BITS` (8, 4 or 2), clipped or not.
pub(crate) struct Dense<const BITS: u32, const CLIPPED: bool>;

impl<const BITS: u32, const CLIPPED: bool> PageFormat for Dense<BITS, CLIPPED> {
    fn nominal_bits(&self) -> f32 {
        BITS as f32
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K, Side::V]
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        Uniform::<BITS>::new(shape).record_bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let mut page = LadderPage::quantise(shape, rows)?;
        page.lower(self.width());
        self.pack(&page, out);
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        Uniform::<BITS>::new(shape).dequantise(record, tokens, out);
    }

    fn level(&self) -> Option<Level<'_>> {
        Some(Level::Low(self))
    }
}

impl<const BITS: u32, const CLIPPED: bool> LadderFormat for Dense<BITS, CLIPPED> {
    fn width(&self) -> Width {
        Width::uniform(BITS, CLIPPED)
    }

    fn unpack(&self, shape: RecordShape, record: &[u8]) -> LadderPage {
        let (meta, codes) = Uniform::<BITS>::new(shape).unpack(record);
        LadderPage::new(shape, self.width(), meta, codes)
    }

    fn pack(&self, page: &LadderPage, out: &mut [u8]) {
        Uniform::<BITS>::new(page.shape).pack(&page.meta, &page.codes, out);
    }
}
