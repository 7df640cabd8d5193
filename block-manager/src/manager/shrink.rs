//! Blocks that take fewer bytes.
//!
//! A shrink is issued with the plan of a step, which transcodes the block from its old frames to
//! new ones. Until that step has retired everybody reads the old ones; then the tables change, and
//! the old frames are free once the steps that may read them have retired too. So no reader ever
//! sees a half-written page, and a shrink that fails leaves everything as it was.

use super::{BlockManager, Short};
use crate::{BlockId, StepId, TableDelta, epoch::Epoch};

/// One block to be transcoded by the step being planned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShrinkJob {
    /// The block.
    pub block: BlockId,
    /// Schedule position of the bytes in `old`.
    pub from: u16,
    /// Schedule position of the bytes to be written to `new`.
    pub to: u16,
    /// Frames to read. This step and those submitted before it returns read the block there.
    pub old: Vec<u32>,
    /// Frames to write. Nobody reads them before the step has retired.
    pub new: Vec<u32>,
    /// Whether a sequence holds the block; otherwise only the prefix cache does.
    pub live: bool,
}

/// A shrink whose step has not retired.
#[derive(Debug)]
pub(super) struct Pending {
    epoch: Epoch,
    /// None: the block was freed meanwhile.
    pub(super) block: BlockId,
    to: u16,
    pub(super) new: Vec<u32>,
    failed: bool,
}

impl BlockManager {
    /// Shrinks a sealed block to its next stop. `Ok(None)`: nothing more comes free within its
    /// bound, or a shrink is under way. The step being planned must be submitted.
    ///
    /// Takes the new frames from the free ones, those held back included. Growth leaves these, so
    /// a full pool can always take one more shrink once the one before has retired.
    pub fn shrink(&mut self, block: BlockId) -> Result<Option<ShrinkJob>, Short> {
        let state = &self.blocks[block];
        if state.is_shrinking || state.is_stuck || !state.sealed {
            return Ok(None);
        }
        let to = self
            .config
            .positions
            .next_stop(state.position, self.bound(block));
        to.map(|to| self.issue(block, to)).transpose()
    }

    pub(super) fn issue(&mut self, block: BlockId, to: u16) -> Result<ShrinkJob, Short> {
        let count = self.config.position_frames(to);
        let free = self.frames.free();
        if count > free {
            return Err(Short {
                missing: count - free,
            });
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
        state.rung = self.config.positions.standing(to).min_bits;
        state.busy = planned;
        let from = state.position;
        if is_cached {
            self.cached.count(&self.blocks, block, done);
        }
        self.index.touch();
        self.requeue(block);
        let old = self.blocks.frames(block).to_vec();
        self.issued += 1;
        self.issued_bytes += old.len() as u64 * self.config.frame_bytes;
        self.shrunk_bytes += old.len() as u64 * self.config.frame_bytes;
        self.pending_frames += count;
        self.pending.push_back(Pending {
            epoch: planned,
            block,
            to,
            new: new.clone(),
            failed: false,
        });
        Ok(ShrinkJob {
            block,
            from,
            to,
            old,
            new,
            live: !is_cached,
        })
    }

    /// A step could not transcode a block: it stays where it is, and is not tried again. Call it
    /// before the step retires.
    pub fn shrink_failed(&mut self, step: StepId, block: BlockId) {
        let epoch = self.epochs.of(step);
        let of_step = self.pending.iter_mut().filter(|p| p.epoch == epoch);
        if let Some(pending) = of_step.into_iter().find(|p| p.block == block) {
            pending.failed = true;
            self.blocks[block].is_stuck = true;
        }
    }

    /// A step did none of its shrinks. Call it before it retires.
    pub fn shrinks_failed(&mut self, step: StepId) {
        let epoch = self.epochs.of(step);
        let of_step = self.pending.iter_mut().filter(|p| p.epoch == epoch);
        of_step.for_each(|p| p.failed = true);
    }

    /// Carries out the shrinks of the steps that have retired.
    pub(super) fn finish_shrinks(&mut self) {
        let done = self.epochs.done();
        while let Some(pending) = self.pending.pop_front_if(|p| p.epoch <= done) {
            if pending.block != BlockId::NONE {
                self.pending_frames -= pending.new.len() as u32;
                self.finish(&pending, done);
            }
        }
    }

    fn finish(&mut self, pending: &Pending, done: Epoch) {
        let &Pending { block, to, .. } = pending;
        let state = &mut self.blocks[block];
        state.is_shrinking = false;
        if pending.failed {
            let position = state.position;
            state.rung = self.config.positions.standing(position).min_bits;
            self.frames.give(&pending.new, 0, done);
            self.index.touch();
            return self.requeue(block);
        }
        let is_cached = state.refs == 0;
        let until = if is_cached {
            state.busy
        } else {
            self.epochs.current()
        };
        if is_cached {
            self.cached.discount(&self.blocks, block, done);
        }
        self.frames.give(self.blocks.frames(block), until, done);
        self.blocks.move_to(block, to, &pending.new);
        if is_cached {
            self.cached.count(&self.blocks, block, done);
        }
        self.index.touch();
        self.moves += 1;
        self.deltas.push(TableDelta::Block {
            block,
            position: to,
        });
        let deltas = pending
            .new
            .iter()
            .zip(0_u32..)
            .map(|(&frame, index)| TableDelta::Frame {
                block,
                index,
                frame,
            });
        self.deltas.extend(deltas);
        self.requeue(block);
    }

    /// The block is freed: what it shrinks to goes with it.
    pub(super) fn abandon_shrink(&mut self, block: BlockId) {
        let pending = self.pending.iter_mut().find(|p| p.block == block);
        let pending = pending.expect("a block that shrinks is listed");
        pending.block = BlockId::NONE;
        let new = std::mem::take(&mut pending.new);
        self.pending_frames -= new.len() as u32;
        self.frames.give(&new, pending.epoch, self.epochs.done());
    }
}
