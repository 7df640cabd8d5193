//! Hidden blocks: those in use that lie behind the window of every sequence that holds them, and
//! still have their windowed frames. Nobody reads these, but a prompt that begins like one of the
//! sequences may: its next token looks back from wherever it leaves them. So they are kept until
//! memory is asked for, and then go in one order with the cached blocks, the oldest first.

use std::collections::BTreeSet;

use crate::{BlockId, epoch::Epoch, evictable::Evictable};

/// The hidden blocks, and their windowed frames.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    /// By the time since when they are hidden.
    by_age: BTreeSet<(u64, BlockId)>,
    windowed: Evictable,
}

impl Hidden {
    /// Their windowed frames.
    pub(crate) fn windowed(&self) -> &Evictable {
        &self.windowed
    }

    /// Adds a block that is hidden since `at`; steps up to `until` may read its `windowed` frames.
    pub(crate) fn insert(
        &mut self,
        (at, block): (u64, BlockId),
        windowed: u32,
        until: Epoch,
        done: Epoch,
    ) {
        self.by_age.insert((at, block));
        self.windowed.add(windowed, until, done);
    }

    /// Undoes [`insert`](Self::insert).
    pub(crate) fn remove(
        &mut self,
        (at, block): (u64, BlockId),
        windowed: u32,
        until: Epoch,
        done: Epoch,
    ) {
        self.by_age.remove(&(at, block));
        self.windowed.remove(windowed, until, done);
    }

    /// Steps up to `done` have retired. Returns whether more can be freed.
    pub(crate) fn retire(&mut self, done: Epoch) -> bool {
        self.windowed.retire(done)
    }

    /// From the one that is hidden longest.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, BlockId)> + '_ {
        self.by_age.iter().copied()
    }
}
