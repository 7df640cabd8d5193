//! What the device's pages store.

use crate::sim::model::Context;
use crate::sim::rng::mix;

/// What a frame stores of one token. A sub-block of several frames stores each token in all of
/// them, so a cell also says which part of its sub-block it is. A frame of a shrunk block has a
/// digest of all of the block's tokens in its first cell, which says which part of the block it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell {
    pub(super) token: u32,
    /// Fingerprint of all tokens up to this one: KV depends on everything before.
    pub(super) context: u32,
    pub(super) level: u16,
    pub(super) part: u16,
    /// Lowest bits of anything that this was computed from.
    pub(super) lowest: u8,
}

/// What memory stores before anything is written to it.
pub(super) const POISON: Cell = Cell {
    token: 0xdead_beef,
    context: 0xdead_beef,
    level: 0xdead,
    part: 0xdead,
    lowest: 0,
};

/// A token at 16 bit.
pub(super) fn cell(token: u32, context: Context, part: usize) -> Cell {
    Cell {
        token,
        context: context.fingerprint(),
        level: 0,
        part: part as u16,
        lowest: 16,
    }
}

/// Part of a shrunk block.
pub(super) fn shrunk(digest: u64, level: u16, part: usize, lowest: u8) -> Cell {
    Cell {
        token: (digest >> 32) as u32,
        context: digest as u32,
        level,
        part: part as u16,
        lowest,
    }
}

/// A digest with one more token.
pub(super) fn add(digest: u64, token: u32, context: u32) -> u64 {
    mix(digest ^ (u64::from(token) << 32 | u64::from(context)))
}
