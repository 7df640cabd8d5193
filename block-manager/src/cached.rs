//! Blocks that only the prefix cache keeps: least recently used first, and how many of their frames
//! eviction can free at once.

use crate::{
    BlockId, block::Blocks, epoch::Epoch, evictable::Evictable, level_counts::LevelCounts,
    list::List,
};

/// The cached blocks. Age is the order in which they became cached.
#[derive(Debug)]
pub(crate) struct Cached {
    by_age: List,
    frames: Evictable,
    by_level: LevelCounts,
}

impl Cached {
    /// An empty cache of blocks that have `levels` precision levels.
    pub(crate) fn new(levels: usize) -> Self {
        Self {
            by_age: List::EMPTY,
            frames: Evictable::default(),
            by_level: LevelCounts::new(levels),
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.by_age.len()
    }

    /// Frames of all cached blocks.
    pub(crate) fn frames(&self) -> &Evictable {
        &self.frames
    }

    /// Cached blocks at each level.
    pub(crate) fn by_level(&self) -> &LevelCounts {
        &self.by_level
    }

    /// From the least to the most recently used.
    pub(crate) fn iter<'a>(&self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + use<'a> {
        self.by_age.iter(blocks)
    }

    /// Adds a block that lost its last holder; `busy_until` is set.
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, id: BlockId, done: Epoch) {
        self.by_age.push_back(blocks, id);
        self.count(blocks, id, done);
    }

    /// Removes a block that found a holder or is evicted.
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, id: BlockId, done: Epoch) {
        self.by_age.remove(blocks, id);
        self.discount(blocks, id, done);
    }

    /// Counts the frames and the level of a block again, after [`discount`](Self::discount) and a
    /// change of them.
    pub(crate) fn count(&mut self, blocks: &Blocks, id: BlockId, done: Epoch) {
        let block = &blocks[id];
        self.frames.add(block.frames.into(), block.busy_until, done);
        self.by_level.add(block);
    }

    /// Undoes [`count`](Self::count).
    pub(crate) fn discount(&mut self, blocks: &Blocks, id: BlockId, done: Epoch) {
        let block = &blocks[id];
        let frames = u32::from(block.frames);
        self.frames.remove(frames, block.busy_until, done);
        self.by_level.remove(block);
    }

    /// Steps up to `done` have retired. Returns whether more became evictable.
    pub(crate) fn retire(&mut self, done: Epoch) -> bool {
        self.frames.retire(done)
    }
}
