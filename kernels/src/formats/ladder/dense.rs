//! Levels of the ladders whose codes all have one width.
//!
//! Layout: `[zero][range][plane]`, see `affine::uniform`.

use std::ops::Range;

use half::bf16;

use super::super::affine::Uniform;
use super::super::codec::{LadderFormat, Level, PageFormat};
use super::super::{Codes, FormatError, RecordShape};
use super::{LadderPage, Width};
use crate::kv::Side;

/// Codes of `BITS` (8, 4 or 2), clipped or not; of keys per token there are no values.
pub(crate) struct Dense<const BITS: u32, const CLIPPED: bool, const BY_TOKEN: bool = false>;

impl<const BITS: u32, const CLIPPED: bool, const BY_TOKEN: bool> Dense<BITS, CLIPPED, BY_TOKEN> {
    const WIDTH: Width = match BY_TOKEN {
        true => Width::uniform(BITS, CLIPPED).by_token(),
        false => Width::uniform(BITS, CLIPPED),
    };

    const fn codec(shape: RecordShape) -> Uniform<BITS> {
        Uniform {
            grouping: Self::WIDTH.grouping(shape.side),
            shape,
        }
    }
}

impl<const BITS: u32, const CLIPPED: bool, const BY_TOKEN: bool> PageFormat
    for Dense<BITS, CLIPPED, BY_TOKEN>
{
    fn nominal_bits(&self) -> f32 {
        BITS as f32
    }

    fn sides(&self) -> &'static [Side] {
        match BY_TOKEN {
            true => &[Side::K],
            false => &[Side::K, Side::V],
        }
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        Self::codec(shape).record_bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let eight = Dense::<8, false, BY_TOKEN>::WIDTH;
        let mut page = LadderPage::quantise_to(eight, shape, rows)?;
        page.lower(self.width());
        self.pack(&page, out);
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        Self::codec(shape).dequantise(record, tokens, out);
    }

    fn codes<'a>(&self, shape: RecordShape, record: &'a [u8]) -> Option<Codes<'a>> {
        Self::codec(shape).codes(record)
    }

    fn level(&self) -> Option<Level<'_>> {
        Some(Level::Low(self))
    }
}

impl<const BITS: u32, const CLIPPED: bool, const BY_TOKEN: bool> LadderFormat
    for Dense<BITS, CLIPPED, BY_TOKEN>
{
    fn width(&self) -> Width {
        Self::WIDTH
    }

    fn unpack(&self, shape: RecordShape, record: &[u8]) -> LadderPage {
        let (meta, codes) = Self::codec(shape).unpack(record);
        LadderPage::new(shape, self.width(), meta, codes)
    }

    fn pack(&self, page: &LadderPage, out: &mut [u8]) {
        Self::codec(page.shape).pack(&page.meta, &page.codes, out);
    }
}
