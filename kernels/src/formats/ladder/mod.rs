//! The ladders: which formats a page shrinks through, and the shrinking itself.

mod dense;
mod page;
mod shift;

pub(crate) use dense::Dense;
pub(crate) use page::{LadderPage, Width};
#[cfg(test)]
pub(crate) use shift::shift_4_to_2;

use half::bf16;

use super::codec::{Level, PageFormat};
use super::{FormatError, FormatId, RecordShape};
use crate::kv::Side;

/// The precision levels of a side, top first: 16 bit, then every format that a page shrinks to
/// unless told otherwise.
pub fn ladder(side: Side) -> impl Iterator<Item = FormatId> {
    precision_levels(side).filter(|f| match f.codec().level() {
        Some(Level::Low(low)) => low.width().is_usual(),
        _ => true,
    })
}

/// Every format that pages of a side can shrink to level by level, 16 bit first: the [`ladder`],
/// below int4 the branch of 2-bit formats that are not clipped, and the ladder of keys per token.
pub fn precision_levels(side: Side) -> impl Iterator<Item = FormatId> {
    let formats = FormatId::ALL.iter().copied();
    formats.filter(move |f| f.is_legal(side) && f.codec().level().is_some())
}

/// Whether a page of `side` may be transcoded `from` -> `to`: any number of levels down, within its
/// groups and its branch at 2 bits, or from 16 bit to a static format.
pub fn legal_shrink(from: FormatId, to: FormatId, side: Side) -> bool {
    if from == to || !from.is_legal(side) || !to.is_legal(side) {
        return false;
    }
    match (from.codec().level(), to.codec().level()) {
        (Some(Level::Low(from)), Some(Level::Low(to))) => from.width().reaches(to.width()),
        (Some(Level::Top), _) => true,
        (Some(Level::Low(_)), Some(Level::Top) | None) | (None, _) => false,
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
    match (from.level(), to.level()) {
        (Some(Level::Low(from)), Some(Level::Low(to))) => {
            let mut page = from.unpack(shape, src);
            page.lower(to.width());
            to.pack(&page, dst);
            Ok(())
        }
        (Some(Level::Top), _) => {
            let halves = src.chunks_exact(2);
            let rows: Vec<bf16> = halves.map(|h| bf16::from_le_bytes([h[0], h[1]])).collect();
            to.encode(shape, &rows, dst)
        }
        _ => unreachable!("legal_shrink allows no other transition"),
    }
}
