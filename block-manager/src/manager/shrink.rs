//! Blocks that take fewer bytes.
//!
//! A shrink is issued with the plan of a step, which transcodes the block from its old frames to
//! new ones. Until that step has retired everybody reads the old ones; then the tables change, and
//! the old frames are free once the steps that may read them have retired too. So no reader ever
//! sees a half-written page, and a shrink that fails leaves everything as it was.

use std::cmp::Reverse;

use super::{BlockManager, Short};
use crate::{
    BlockId, PositionUse, Pressure, SeqBits, SeqId, StepId, TableDelta,
    epoch::Epoch,
    planner::{Place, level},
    schedule::Bound,
};

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
    block: BlockId,
    to: u16,
    pub(super) new: Vec<u32>,
    failed: bool,
}

/// A block that only the prefix cache keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColdBlock {
    /// The block.
    pub block: BlockId,
    /// Its place in the shrink schedule.
    pub position: u16,
    /// Frames it owns.
    pub frames: u32,
    /// Blocks before it in its prompt; 0 is the attention sink of every sequence that will share
    /// it.
    pub depth: u32,
}

/// A sealed block of a sequence that no holder protects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// The block.
    pub block: BlockId,
    /// Its place in the shrink schedule.
    pub position: u16,
    /// Frames it owns.
    pub frames: u32,
    /// Sequences that hold it.
    pub holders: u32,
}

impl BlockManager {
    /// Whether a holder needs the block's width: it is the first or the last sealed block of a
    /// sequence, or not sealed for one of them.
    pub fn is_protected(&self, block: BlockId) -> bool {
        let block = &self.blocks[block];
        !block.sealed || block.guards > 0
    }

    /// The lowest nominal bits that the block may shrink to now: the highest of what its holders
    /// insist on and of what protects it.
    pub fn bound(&self, block: BlockId) -> Bound {
        let block = &self.blocks[block];
        if !block.sealed || block.pins > 0 {
            return Bound::NEVER;
        }
        let claim = block.claims.iter().position(|&holders| holders > 0);
        let claimed = claim.map_or(Bound::FLOOR, |class| Bound::WIDTHS[class]);
        if block.first {
            claimed.max(self.config.sink)
        } else if block.guards > 0 {
            claimed.max(self.config.protected)
        } else {
            claimed
        }
    }

    /// Cached blocks from the least to the most recently used.
    pub fn cold_blocks(&self) -> impl Iterator<Item = ColdBlock> + '_ {
        self.cached.iter(&self.blocks).map(|id| {
            let block = &self.blocks[id];
            ColdBlock {
                block: id,
                position: block.position,
                frames: block.frames.into(),
                depth: self.index.get(block.entry).depth,
            }
        })
    }

    /// The sealed blocks of a sequence that no holder protects, oldest tokens first.
    pub fn unprotected_blocks(&self, seq: SeqId) -> impl Iterator<Item = LiveBlock> + '_ {
        let row = self.seqs.get(seq);
        let sealed = row.blocks[..row.full_blocks()].iter();
        sealed.filter(|&&id| !self.is_protected(id)).map(|&id| {
            let block = &self.blocks[id];
            LiveBlock {
                block: id,
                position: block.position,
                frames: block.frames.into(),
                holders: block.refs,
            }
        })
    }

    /// Blocks at each position that has some.
    pub fn position_use(&self) -> impl Iterator<Item = PositionUse> + '_ {
        let counts = self.blocks.standing().iter().zip(self.cached.standing());
        counts
            .zip(0_u16..)
            .filter(|((blocks, _), _)| **blocks > 0)
            .map(|((&blocks, &cached), position)| {
                let bytes = self.config.positions.standing(position).cost.bytes;
                PositionUse {
                    position,
                    blocks,
                    cached,
                    bytes: bytes * u64::from(blocks),
                }
            })
    }

    /// A step that is being planned computes `tokens` tokens of `seq`, which read its blocks as
    /// they are now. Call it for every sequence of the step before [`begin_step`], if blocks can
    /// shrink: what is published of the sequence carries the lowest bits it was computed from.
    ///
    /// [`begin_step`]: Self::begin_step
    pub fn note_read(&mut self, seq: SeqId, tokens: u32) {
        if !self.config.shrinks() {
            return;
        }
        let slot = self.seqs.slot(seq);
        let row = self.seqs.at(slot);
        let mut read = row.read;
        let seen = (self.moves, row.blocks.len());
        if read.seen != seen {
            read.seen = seen;
            let table = &self.config.positions;
            let (mut lowest, mut sum) = (16, 0);
            for &id in &row.blocks {
                let position = self.blocks[id].position;
                lowest = lowest.min(table.standing(position).min_bits);
                sum += table.centibits(position);
            }
            read.now = (lowest, sum / row.blocks.len().max(1) as u64);
        }
        read.lowest = read.lowest.min(read.now.0);
        read.tokens += u64::from(tokens);
        read.centibits += u64::from(tokens) * read.now.1;
        self.seqs.at_mut(slot).read = read;
    }

    /// Widths at which a sequence's tokens have read their context.
    pub fn bits(&self, seq: SeqId) -> SeqBits {
        let read = self.seqs.get(seq).read;
        let mean = read.centibits.checked_div(read.tokens).unwrap_or(1600);
        SeqBits {
            lowest: read.lowest,
            mean_centibits: mean as u32,
            tokens: read.tokens,
        }
    }

    /// Issues the shrinks that `pressure` calls for with the step being planned, which must then be
    /// submitted even if it has nothing else to do. If cold blocks could give what is wanted by
    /// being evicted, they shrink instead, if they are to, the least recently used first, until the
    /// high watermark is free. If not, live ones that can shrink do, and cold ones make way without
    /// being rewritten first. A cold block goes to its next stop; a live one as far as it would
    /// have to if all gave up evenly what is wanted; none below its bound. Live blocks also shrink
    /// if they hold more than they may, though there is room.
    ///
    /// The new frames come from those that nobody takes soon, or else from those held back. For
    /// live blocks cold ones are evicted: what is left of these counts as free, and if shrinks
    /// could not write there, little would shrink once nothing else is.
    pub fn relieve(&mut self, pressure: &Pressure, jobs: &mut Vec<ShrinkJob>) {
        if !self.config.shrinks() {
            return;
        }
        let held_back = u64::from(self.held_back);
        let (free, pool) = (
            self.frames.free(),
            self.frames.free() + self.frames.retiring(),
        );
        let (mut ready, mut supply) = (u64::from(pool), u64::from(pool + self.cached.frames()));
        for pending in self.pending.iter().filter(|p| p.block != BlockId::NONE) {
            let block = &self.blocks[pending.block];
            ready += u64::from(block.frames);
            supply += if block.refs > 0 {
                u64::from(block.frames)
            } else {
                pending.new.len() as u64
            };
        }
        let beyond = |pool: &Self| {
            let takeable = pool.frames.free() + pool.cached.evictable();
            takeable.saturating_sub(pressure.soon)
        };
        let mut allowed = beyond(self).min(free).max(free.min(self.held_back));

        let spare = |frames: u64| frames.saturating_sub(held_back);
        self.queues.live_pressed = pressure.short(self.queues.live_pressed, spare(supply)) > 0;
        self.queues.cold_pressed = pressure.short(self.queues.cold_pressed, spare(ready)) > 0;
        let live_give = self.queues.live_pressed && self.can_shrink_live();
        while pressure.cold
            && !live_give
            && self.queues.cold_pressed
            && let Some(&(_, block)) = self.queues.cold.first()
        {
            let issued = self.issue_within(block, u32::MAX, pressure, &mut allowed, jobs);
            let Some((from, to)) = issued else {
                break;
            };
            // Evicting the block would have given as much as shrinking and then evicting it does.
            ready += u64::from(from - to);
            self.queues.cold_pressed = pressure.short(true, spare(ready)) > 0;
        }
        allowed = allowed.max(beyond(self));
        loop {
            // What live blocks hold is what is neither free nor cached, once all that is under way
            // is over.
            let live = u64::from(self.config.frames) - supply;
            let short = pressure.short(self.queues.live_pressed, spare(supply));
            let over = pressure.over(self.queues.live_over, live);
            (self.queues.live_pressed, self.queues.live_over) = (short > 0, over > 0);
            let wanted = short.max(over);
            let Some(&(.., block)) = self.queues.live.first().filter(|_| wanted > 0) else {
                break;
            };
            let level = level(&self.queues, wanted);
            let issued = self.issue_within(block, level, pressure, &mut allowed, jobs);
            let Some((from, to)) = issued else {
                break;
            };
            supply += u64::from(from - to);
        }
    }

    /// Whether a block that a sequence holds can shrink further.
    pub fn can_shrink_live(&self) -> bool {
        !self.queues.live.is_empty()
    }

    /// Issues a shrink to the next stop of at most `level` frames, or to the last one, if the
    /// step's bytes and the frames allow it; tells the frames before and after.
    fn issue_within(
        &mut self,
        block: BlockId,
        level: u32,
        pressure: &Pressure,
        allowed: &mut u32,
        jobs: &mut Vec<ShrinkJob>,
    ) -> Option<(u32, u32)> {
        let state = &self.blocks[block];
        let (from, position) = (u32::from(state.frames), state.position);
        let bound = self.bound(block);
        let next = |position| self.config.positions.next_stop(position, bound);
        let mut to = next(position).expect("queued blocks have a way down");
        while self.config.position_frames(to) > level
            && let Some(further) = next(to)
        {
            to = further;
        }
        let count = self.config.position_frames(to);
        let bytes = u64::from(from) * self.config.frame_bytes;
        let is_within = self.issued_bytes == 0 || self.issued_bytes + bytes <= pressure.bytes_max;
        if !is_within || count > *allowed {
            return None;
        }
        *allowed -= count;
        if self.blocks[block].refs > 0 {
            self.evict_until(count);
        }
        jobs.push(self.issue(block, to).ok()?);
        Some((from, count))
    }

    /// Takes every block of a sequence to where its bound lets it go, as far as frames last, and
    /// tells whether all are there: for callers whose blocks have one place to be.
    pub fn settle(&mut self, seq: SeqId, jobs: &mut Vec<ShrinkJob>) -> bool {
        let slot = self.seqs.slot(seq);
        let mut is_settled = true;
        for index in 0..self.seqs.at(slot).full_blocks() {
            let block = self.seqs.at(slot).blocks[index];
            let state = &self.blocks[block];
            is_settled &= !state.is_shrinking;
            if matches!(state.place, Place::Nowhere) {
                continue;
            }
            is_settled = false;
            let to = self
                .config
                .positions
                .last_stop(state.position, self.bound(block));
            if let Some(job) = to.and_then(|to| self.issue(block, to).ok()) {
                jobs.push(job);
            }
        }
        is_settled
    }

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

    fn issue(&mut self, block: BlockId, to: u16) -> Result<ShrinkJob, Short> {
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

    /// Puts a block where the planner looks for it, after a change of anything that this depends
    /// on.
    pub(super) fn requeue(&mut self, id: BlockId) {
        if !self.config.shrinks() {
            return;
        }
        let place = self.place_of(id);
        let before = std::mem::replace(&mut self.blocks[id].place, place);
        if before != place {
            self.queues.remove(id, before);
            self.queues.add(id, place);
        }
    }

    /// Where the planner must find a block.
    pub(super) fn place_of(&self, id: BlockId) -> Place {
        let block = &self.blocks[id];
        if !block.sealed || block.is_shrinking || block.is_stuck {
            return Place::Nowhere;
        }
        let next = self
            .config
            .positions
            .next_stop(block.position, self.bound(id));
        match (next, block.refs) {
            (None, _) => Place::Nowhere,
            (Some(_), 0) => Place::Cold(block.age),
            (Some(_), _) => Place::Live((
                Reverse(block.class),
                Reverse(block.frames),
                block.guards > 0,
                block.birth,
                id,
            )),
        }
    }
}
