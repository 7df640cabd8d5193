//! The ladders: which formats a page shrinks through, and the shrinking itself.

mod page;
mod shift;

pub(crate) use page::{LadderPage, Width};
#[cfg(test)]
pub(crate) use shift::shift_4_to_2;

use half::bf16;

use super::codec::{PageFormat, Rung};
use super::{FormatError, FormatId, RecordShape};
use crate::kv::Side;

/// The rungs of a side, top first: 16-bit, then every format that a page shrinks to unless told
/// otherwise.
pub fn ladder(side: Side) -> impl Iterator<Item = FormatId> {
    rungs(side).filter(|f| match f.codec().rung() {
        Some(Rung::Low(low)) => low.width().is_usual(),
        _ => true,
    })
}

/// Every format that pages of a side can shrink to step by step, 16-bit first: the [`ladder`], and
/// below int4 the branch of 2-bit formats that are not clipped.
pub fn rungs(side: Side) -> impl Iterator<Item = FormatId> {
    let rungs = FormatId::ALL.iter().copied();
    rungs.filter(move |f| f.is_legal(side) && f.codec().rung().is_some())
}

/// Whether a page of `side` may be transcoded `from` -> `to`: any number of rungs down, within its
/// branch at 2 bits, or from 16 bit to a static format.
pub fn legal_shrink(from: FormatId, to: FormatId, side: Side) -> bool {
    if from == to || !from.is_legal(side) || !to.is_legal(side) {
        return false;
    }
    match (from.codec().rung(), to.codec().rung()) {
        (Some(Rung::Low(from)), Some(Rung::Low(to))) => from.width().reaches(to.width()),
        (Some(Rung::Top), _) => true,
        _ => false,
    }
}

/// Transcodes a record; the transition is legal and the buffers have the right lengths.
pub(crate) fn shrink(
    from: &dyn PageFormat,
    to: &dyn PageFormat,
    shape: RecordShape,
    src: &[u8],
    dst: &mut [u8],
) -> Result<(), FormatError> {
    match (from.rung(), to.rung()) {
        (Some(Rung::Low(from)), Some(Rung::Low(to))) => {
            let mut page = from.unpack(shape, src);
            page.lower(to.width());
            to.pack(&page, dst);
            Ok(())
        }
        _ => {
            let halves = src.chunks_exact(2);
            let rows: Vec<bf16> = halves.map(|h| bf16::from_le_bytes([h[0], h[1]])).collect();
            to.encode(shape, &rows, dst)
        }
    }
}
