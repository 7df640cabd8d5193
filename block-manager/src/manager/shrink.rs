//! How a block shrinks.
//!
//! A shrink is part of a step's plan. The step rewrites the block from its old frames to new ones.
//! Until the step has retired, all steps read the old frames. Then the tables change, and the old
//! frames become free once the steps that may read them have retired too. So no step reads a page
//! that is half written, and a shrink that fails leaves everything as it was.

use super::{BlockManager, OutOfFrames};
use crate::{BlockId, NO_FRAME, StepId, TableDelta, epoch::Epoch};

/// One block that the step being planned shrinks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShrinkJob {
    /// The block.
    pub block: BlockId,
    /// Precision level of the pages in `old`.
    pub from: u16,
    /// Precision level of the pages to be written to `new`.
    pub to: u16,
    /// Frames to read. This step and those submitted before it returns read the block there.
    /// [`NO_FRAME`] stands in for windowed ones that it has given back.
    pub old: Vec<u32>,
    /// Frames to write, in the same way. No step reads them before this one has retired.
    pub new: Vec<u32>,
    /// Whether a sequence holds the block; otherwise only the prefix cache does.
    pub live: bool,
}

impl ShrinkJob {
    /// Frames that come free. May be 0 in static mode, where a trimmed block shrinks by its
    /// sequence's length although that frees nothing.
    pub fn frames_freed(&self) -> usize {
        let owned = |frames: &[u32]| frames.iter().filter(|&&f| f != NO_FRAME).count();
        owned(&self.old).saturating_sub(owned(&self.new))
    }
}

/// A shrink whose step has not retired.
#[derive(Debug)]
pub(super) struct PendingShrink {
    epoch: Epoch,
    /// None: the block was freed meanwhile.
    pub(super) block: BlockId,
    to: u16,
    /// Its new frames, from the first place on.
    pub(super) new: Vec<u32>,
    failed: bool,
}

impl BlockManager {
    /// Shrinks a sealed block to the next lower level that frees frames. `Ok(None)`: there is none
    /// that its holders allow, or a shrink is under way. The step being planned must be submitted.
    ///
    /// Takes free frames, the shrink reserve included. Sequences leave the reserve alone, so a full
    /// pool can always shrink one more block once the shrink before has retired.
    pub fn shrink(&mut self, block: BlockId) -> Result<Option<ShrinkJob>, OutOfFrames> {
        let state = &self.blocks[block];
        if state.is_shrinking || state.cannot_shrink || !state.sealed {
            return Ok(None);
        }
        let levels = self.levels_of(block);
        let to = levels.next_target(state.level, self.min_bits(block));
        to.map(|to| self.issue(block, to)).transpose()
    }

    pub(super) fn issue(&mut self, block: BlockId, to: u16) -> Result<ShrinkJob, OutOfFrames> {
        let count = self.levels_of(block).level(to).size.frames;
        let free = self.frames.free();
        if count > free {
            return Err(OutOfFrames {
                missing: count - free,
            });
        }
        if self.blocks[block].hidden_at > 0 {
            self.trim(block);
        }
        let mut new = vec![0; count as usize];
        self.frames.take(&mut new);
        let (done, planned) = (self.epochs.done(), self.epochs.planned());
        let is_cached = self.blocks[block].refs == 0;
        if is_cached {
            self.cached.discount(&self.blocks, block, done);
        }
        let state = &mut self.blocks[block];
        state.is_shrinking = true;
        state.bits = self.config.levels.level(to).lowest_bits;
        state.busy_until = planned;
        let from = state.level;
        if is_cached {
            self.cached.count(&self.blocks, block, done);
        }
        self.index.touch();
        self.requeue(block);
        let old = self.blocks.frames(block).to_vec();
        let bytes = u64::from(self.blocks[block].frames) * self.config.frame_bytes;
        self.issued += 1;
        self.issued_bytes += bytes;
        self.shrunk_bytes += bytes;
        self.pending_frames += count;
        self.pending.push_back(PendingShrink {
            epoch: planned,
            block,
            to,
            new: new.clone(),
            failed: false,
        });
        new.resize(self.config.level_frames(to) as usize, NO_FRAME);
        Ok(ShrinkJob {
            block,
            from,
            to,
            old,
            new,
            live: !is_cached,
        })
    }

    /// A step could not shrink a block: it keeps its level and is not tried again. Call it before
    /// the step retires.
    pub fn shrink_failed(&mut self, step: StepId, block: BlockId) {
        let epoch = self.epochs.of(step);
        let of_step = self.pending.iter_mut().filter(|p| p.epoch == epoch);
        if let Some(pending) = of_step.into_iter().find(|p| p.block == block) {
            pending.failed = true;
            self.blocks[block].cannot_shrink = true;
        }
    }

    /// A step did none of its shrinks. Call it before the step retires.
    pub fn shrinks_failed(&mut self, step: StepId) {
        let epoch = self.epochs.of(step);
        let of_step = self.pending.iter_mut().filter(|p| p.epoch == epoch);
        of_step.for_each(|p| p.failed = true);
    }

    /// Applies the shrinks of the steps that have retired.
    pub(super) fn finish_shrinks(&mut self) {
        let done = self.epochs.done();
        while let Some(pending) = self.pending.pop_front_if(|p| p.epoch <= done) {
            if pending.block != BlockId::NONE {
                self.pending_frames -= pending.new.len() as u32;
                self.finish(&pending, done);
            }
        }
    }

    fn finish(&mut self, pending: &PendingShrink, done: Epoch) {
        let &PendingShrink { block, to, .. } = pending;
        let state = &mut self.blocks[block];
        state.is_shrinking = false;
        if pending.failed {
            let level = state.level;
            state.bits = self.config.levels.level(level).lowest_bits;
            self.frames.give(&pending.new, 0, done);
            self.index.touch();
            self.requeue(block);
            return self.rehide(block);
        }
        let is_cached = state.refs == 0;
        let until = if is_cached {
            state.busy_until
        } else {
            self.epochs.current()
        };
        if is_cached {
            self.cached.discount(&self.blocks, block, done);
        }
        self.give_frames_of(block, until);
        let places = self.config.level_frames(to) as usize;
        self.blocks.move_to(block, to, &pending.new, places);
        if is_cached {
            self.cached.count(&self.blocks, block, done);
        }
        self.index.touch();
        self.level_changes += 1;
        self.deltas.push(TableDelta::Block { block, level: to });
        let frames = self.blocks.frames(block).iter().zip(0_u32..);
        let deltas = frames.map(|(&frame, index)| TableDelta::Frame {
            block,
            index,
            frame,
        });
        self.deltas.extend(deltas);
        self.requeue(block);
        self.rehide(block);
    }

    /// A block that shrinks is freed: its new frames go with it.
    pub(super) fn abandon_shrink(&mut self, block: BlockId) {
        let pending = self.pending.iter_mut().find(|p| p.block == block);
        let pending = pending.expect("a block that shrinks is listed");
        pending.block = BlockId::NONE;
        let new = std::mem::take(&mut pending.new);
        self.pending_frames -= new.len() as u32;
        self.frames.give(&new, pending.epoch, self.epochs.done());
    }
}
