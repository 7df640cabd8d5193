//! Blocks that only the prefix cache keeps: by age, and how many of their frames eviction can
//! free at once.

use std::collections::VecDeque;

use crate::{BlockId, block::Blocks, epoch::Epoch, list::List};

/// The cached blocks. Age is the order in which they became cached: a logical clock.
#[derive(Debug)]
pub(crate) struct Cached {
    by_age: List,
    frames: u32,
    /// Blocks at each position.
    standing: Vec<u32>,
    /// Frames of cached blocks that a step in flight may still touch, by rising epoch: evicting
    /// those blocks would free nothing yet.
    cooling: VecDeque<(Epoch, u32)>,
    cooling_frames: u32,
}

impl Cached {
    /// None cached, of blocks with `positions` positions.
    pub(crate) fn new(positions: usize) -> Self {
        Self {
            by_age: List::EMPTY,
            frames: 0,
            standing: vec![0; positions],
            cooling: VecDeque::new(),
            cooling_frames: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.by_age.len()
    }

    /// Frames of all cached blocks.
    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    /// Cached blocks at each position.
    pub(crate) fn standing(&self) -> &[u32] {
        &self.standing
    }

    /// Frames that eviction can free at once.
    pub(crate) fn evictable(&self) -> u32 {
        self.frames - self.cooling_frames
    }

    /// The least recently used block.
    pub(crate) fn oldest(&self) -> Option<BlockId> {
        self.by_age.first()
    }

    /// From the least to the most recently used.
    pub(crate) fn iter<'a>(&self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + use<'a> {
        self.by_age.iter(blocks)
    }

    /// `id` lost its last holder; its `busy` epoch is set.
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, id: BlockId, done: Epoch) {
        self.by_age.push_back(blocks, id);
        self.count(blocks, id, done);
    }

    /// `id` found a holder or is evicted.
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, id: BlockId, done: Epoch) {
        self.by_age.remove(blocks, id);
        self.discount(blocks, id, done);
    }

    /// Counts the frames and the position of `id`, after [`discount`](Self::discount) and a change
    /// of them.
    pub(crate) fn count(&mut self, blocks: &Blocks, id: BlockId, done: Epoch) {
        let (frames, busy) = (u32::from(blocks[id].frames), blocks[id].busy);
        self.frames += frames;
        self.standing[usize::from(blocks[id].position)] += 1;
        if busy <= done {
            return;
        }
        self.cooling_frames += frames;
        let at = self.cooling.partition_point(|&(epoch, _)| epoch < busy);
        match self.cooling.get_mut(at) {
            Some((epoch, count)) if *epoch == busy => *count += frames,
            _ => self.cooling.insert(at, (busy, frames)),
        }
    }

    /// Undoes [`count`](Self::count).
    pub(crate) fn discount(&mut self, blocks: &Blocks, id: BlockId, done: Epoch) {
        let (frames, busy) = (u32::from(blocks[id].frames), blocks[id].busy);
        self.frames -= frames;
        self.standing[usize::from(blocks[id].position)] -= 1;
        if busy <= done {
            return;
        }
        self.cooling_frames -= frames;
        let at = self.cooling.partition_point(|&(epoch, _)| epoch < busy);
        self.cooling[at].1 -= frames;
    }

    /// Steps up to `done` have retired. Returns whether more became evictable.
    pub(crate) fn cool(&mut self, done: Epoch) -> bool {
        let before = self.cooling_frames;
        while let Some(&(_, frames)) = self.cooling.front().filter(|&&(epoch, _)| epoch <= done) {
            self.cooling_frames -= frames;
            self.cooling.pop_front();
        }
        self.cooling_frames < before
    }

    /// Frames that steps in flight may touch, by epoch: for the audit.
    pub(crate) fn cooling(&self) -> impl Iterator<Item = (Epoch, u32)> + '_ {
        self.cooling.iter().copied()
    }
}
