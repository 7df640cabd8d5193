//! Asymmetric 2-bit codes, shifted or clipped from the 4-bit rung: the bottom of both ladders.
//!
//! Layout: `[zero][range][plane]`, see `affine::uniform`.

use std::ops::Range;

use half::bf16;

use super::affine::Uniform;
use super::codec::{LadderFormat, PageFormat, Rung};
use super::ladder::{LadderPage, Width};
use super::{FormatError, RecordShape};
use crate::kv::Side;

/// Codec of `int2c` and, not clipped, of `int2`.
pub(crate) struct Int2<const CLIPPED: bool>;

impl<const CLIPPED: bool> PageFormat for Int2<CLIPPED> {
    fn nominal_bits(&self) -> f32 {
        2.0
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K, Side::V]
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        Uniform::<2>::new(shape).record_bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let mut page = LadderPage::quantise(shape, rows)?;
        page.lower(self.width());
        self.pack(&page, out);
        Ok(())
    }

    fn decode(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        Uniform::<2>::new(shape).decode(record, tokens, out);
    }

    fn rung(&self) -> Option<Rung<'_>> {
        Some(Rung::Low(self))
    }
}

impl<const CLIPPED: bool> LadderFormat for Int2<CLIPPED> {
    fn width(&self) -> Width {
        Width::two(0, CLIPPED)
    }

    fn unpack(&self, shape: RecordShape, record: &[u8]) -> LadderPage {
        let (meta, codes) = Uniform::<2>::new(shape).unpack(record);
        LadderPage::new(shape, self.width(), meta, codes)
    }

    fn pack(&self, page: &LadderPage, out: &mut [u8]) {
        Uniform::<2>::new(page.shape).pack(&page.meta, &page.codes, out);
    }
}
