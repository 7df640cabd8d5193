//! Blocks that only the prefix cache keeps: least recently used first, and how many of their frames
//! eviction can free at once.

use std::collections::VecDeque;

use crate::{BlockId, block::Blocks, epoch::Epoch, list::List};

/// The cached blocks. Age is the order in which they became cached.
#[derive(Debug)]
pub(crate) struct Cached {
    by_age: List,
    frames: u32,
    /// Blocks at each level.
    by_level: Vec<u32>,
    /// Frames of cached blocks that a step in flight may still touch, by rising epoch: evicting
    /// those blocks would free nothing yet.
    busy: VecDeque<(Epoch, u32)>,
    busy_frames: u32,
}

impl Cached {
    /// An empty cache of blocks that have `levels` precision levels.
    pub(crate) fn new(levels: usize) -> Self {
        Self {
            by_age: List::EMPTY,
            frames: 0,
            by_level: vec![0; levels],
            busy: VecDeque::new(),
            busy_frames: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.by_age.len()
    }

    /// Frames of all cached blocks.
    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    /// Cached blocks at each level.
    pub(crate) fn by_level(&self) -> &[u32] {
        &self.by_level
    }

    /// Frames that eviction can free at once.
    pub(crate) fn evictable(&self) -> u32 {
        self.frames - self.busy_frames
    }

    /// The least recently used block.
    pub(crate) fn oldest(&self) -> Option<BlockId> {
        self.by_age.first()
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
        let (frames, until) = (u32::from(blocks[id].frames), blocks[id].busy_until);
        self.frames += frames;
        self.by_level[usize::from(blocks[id].level)] += 1;
        if until <= done {
            return;
        }
        self.busy_frames += frames;
        let at = self.busy.partition_point(|&(epoch, _)| epoch < until);
        match self.busy.get_mut(at) {
            Some((epoch, count)) if *epoch == until => *count += frames,
            _ => self.busy.insert(at, (until, frames)),
        }
    }

    /// Undoes [`count`](Self::count).
    pub(crate) fn discount(&mut self, blocks: &Blocks, id: BlockId, done: Epoch) {
        let (frames, until) = (u32::from(blocks[id].frames), blocks[id].busy_until);
        self.frames -= frames;
        self.by_level[usize::from(blocks[id].level)] -= 1;
        if until <= done {
            return;
        }
        self.busy_frames -= frames;
        let at = self.busy.partition_point(|&(epoch, _)| epoch < until);
        self.busy[at].1 -= frames;
    }

    /// Steps up to `done` have retired. Returns whether more became evictable.
    pub(crate) fn retire(&mut self, done: Epoch) -> bool {
        let before = self.busy_frames;
        while let Some(&(_, frames)) = self.busy.front().filter(|&&(epoch, _)| epoch <= done) {
            self.busy_frames -= frames;
            self.busy.pop_front();
        }
        self.busy_frames < before
    }

    /// Frames that steps in flight may touch, by epoch: for the audit.
    pub(crate) fn busy(&self) -> impl Iterator<Item = (Epoch, u32)> + '_ {
        self.busy.iter().copied()
    }
}
