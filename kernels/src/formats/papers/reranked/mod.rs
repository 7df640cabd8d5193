//! `kitty25top`, `kitty12top`, `kitty25var`, `kitty12var`, `kitty25rnd`, `kitty12rnd`: Kitty's
//! pages with the boosted channels of another ranking; static. The first two rank the 16-bit rows,
//! as the paper does, the others are its ablation. Layout: see `kitty`.

use std::ops::Range;

use half::bf16;

use crate::formats::codec::{HeadDims, PageFormat};
use crate::formats::kitty::{HEAD_DIMS, Kitty, Ranking, nominal_bits};
use crate::formats::ladder::{LadderPage, Width};
use crate::formats::{FormatError, RecordShape};
use crate::kv::Side;

/// Keys with `SLABS` eighths of their channels at 4 bits, the first ones of a ranking.
pub(crate) struct Reranked<const SLABS: usize>(pub(crate) Ranking);

impl<const SLABS: usize> PageFormat for Reranked<SLABS> {
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
        let rank = |page: &LadderPage, boosted| self.0.index(page, rows, boosted);
        page.lower_by(rank, Width::two(SLABS, false));
        Kitty::<SLABS>::new(shape).pack(&page, out);
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        Kitty::<SLABS>::new(shape).dequantise(record, tokens, out);
    }
}
