//! Hidden blocks: those in use that lie behind the window of every sequence that holds them, and
//! still have their windowed frames. Nobody reads these, but a prompt that begins like one of the
//! sequences may: its next token looks back from wherever it leaves them. So they are kept until
//! memory is asked for, and then go in one order with the cached blocks, the oldest first.

use std::collections::BTreeSet;

use crate::{BlockId, epoch::Epoch, evictable::Evictable};

/// The hidden blocks, and their windowed frames.
#[derive(Debug)]
pub(crate) struct Hidden {
    /// By the time since when they are hidden.
    by_age: BTreeSet<(u64, BlockId)>,
    by_level: Vec<u32>,
    windowed: Evictable,
}

/// A hidden block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HiddenBlock {
    /// Since when it is hidden.
    pub(crate) at: u64,
    pub(crate) block: BlockId,
    pub(crate) level: u16,
    /// Its windowed frames, and the last step that may read them.
    pub(crate) windowed: u32,
    pub(crate) until: Epoch,
}

impl Hidden {
    /// None, of blocks that have `levels` precision levels.
    pub(crate) fn new(levels: usize) -> Self {
        Self {
            by_age: BTreeSet::new(),
            by_level: vec![0; levels],
            windowed: Evictable::default(),
        }
    }

    /// Their windowed frames.
    pub(crate) fn windowed(&self) -> &Evictable {
        &self.windowed
    }

    /// How many are at each precision level.
    pub(crate) fn by_level(&self) -> &[u32] {
        &self.by_level
    }

    /// Adds a block. Steps up to `done` have retired.
    pub(crate) fn insert(&mut self, block: HiddenBlock, done: Epoch) {
        self.by_age.insert((block.at, block.block));
        self.by_level[usize::from(block.level)] += 1;
        self.windowed.add(block.windowed, block.until, done);
    }

    /// Undoes [`insert`](Self::insert).
    pub(crate) fn remove(&mut self, block: HiddenBlock, done: Epoch) {
        self.by_age.remove(&(block.at, block.block));
        self.by_level[usize::from(block.level)] -= 1;
        self.windowed.remove(block.windowed, block.until, done);
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
