//! Which blocks the step being planned shrinks: the [pressure policy](crate::pressure), carried
//! out.

use std::cmp::Reverse;

use super::{BlockManager, ShrinkJob};
use crate::{
    BlockId, SeqId,
    pressure::{Outlook, Pressure, ShrinkRank, even_share},
    shrink_queue::Queued,
};

impl BlockManager {
    /// Issues the shrinks that `pressure` calls for with the step being planned, which must then be
    /// submitted even if it has nothing else to do. Cached blocks shrink to their next lower level,
    /// as long as evicting them would be enough. Otherwise live ones shrink, to what each would be
    /// left with if all gave up evenly. None falls below its floor.
    ///
    /// Shrinks are written to frames that no sequence takes soon, or to the reserve. For live
    /// blocks, cached ones are evicted: these count as free, so shrinks must be able to write
    /// there.
    pub fn shrink_for(&mut self, pressure: &Pressure, jobs: &mut Vec<ShrinkJob>) {
        if !self.config.shrinks() {
            return;
        }
        let mut outlook = self.outlook();
        let mut begun = self.begun;
        let (free, evictable) = (self.frames.free(), self.evictable());
        let mut writable = pressure.writable_for_cached(free, evictable, self.shrink_reserve);

        begun.look(pressure, &outlook);
        while begun.cached_shrink(pressure, self.can_shrink_live())
            && let Some(&(_, block)) = self.queues.cached.first()
        {
            let issued = self.issue_if_allowed(block, u32::MAX, pressure, &mut writable, jobs);
            let Some((from, to)) = issued else {
                break;
            };
            // Evicting the block would have given as much as shrinking and then evicting it does.
            outlook.unowned += u64::from(from - to);
            begun.look_at_cached(pressure, &outlook);
        }
        let (free, evictable) = (self.frames.free(), self.evictable());
        writable = writable.max(pressure.writable(free, evictable));
        loop {
            let wanted = begun.wanted_from_live(pressure, &outlook);
            let Some(&ShrinkRank { block, .. }) = self.queues.live.first().filter(|_| wanted > 0)
            else {
                break;
            };
            let blocks = self.queues.live.len() as u64;
            let share = even_share(blocks, self.queues.live_frames, wanted);
            let issued = self.issue_if_allowed(block, share, pressure, &mut writable, jobs);
            let Some((from, to)) = issued else {
                break;
            };
            outlook.not_live += u64::from(from - to);
        }
        self.begun = begun;
    }

    /// The pool once the steps in flight are done.
    fn outlook(&self) -> Outlook {
        let unowned = u64::from(self.frames.free() + self.frames.retiring());
        let mut outlook = Outlook {
            total: self.config.frames.into(),
            reserve: self.shrink_reserve.into(),
            unowned,
            not_live: unowned
                + u64::from(self.cached.frames().frames() + self.hidden.windowed().frames()),
        };
        for pending in self.pending.iter().filter(|p| p.block != BlockId::NONE) {
            let block = &self.blocks[pending.block];
            outlook.unowned += u64::from(block.frames);
            outlook.not_live += if block.refs > 0 {
                u64::from(block.frames)
            } else {
                pending.new.len() as u64
            };
        }
        outlook
    }

    /// Whether a live block can shrink further.
    pub fn can_shrink_live(&self) -> bool {
        !self.queues.live.is_empty()
    }

    /// Shrinks a block to the next lower level of at most `share` frames, or to the lowest, if the
    /// step's bytes and `writable` frames allow it. Returns the frames before and after.
    fn issue_if_allowed(
        &mut self,
        block: BlockId,
        share: u32,
        pressure: &Pressure,
        writable: &mut u32,
        jobs: &mut Vec<ShrinkJob>,
    ) -> Option<(u32, u32)> {
        let (from, level) = (self.held_frames(block), self.blocks[block].level);
        let (levels, min_bits) = (self.levels_of(block), self.min_bits(block));
        let next = |level| levels.next_target(level, min_bits);
        let frames_at = |level| levels.level(level).size.frames;
        let mut to = next(level).expect("queued blocks can shrink");
        while frames_at(to) > share
            && let Some(further) = next(to)
        {
            to = further;
        }
        let count = frames_at(to);
        let bytes = u64::from(from) * self.config.frame_bytes;
        if !pressure.allows_bytes(self.issued_bytes, bytes) || count > *writable {
            return None;
        }
        *writable -= count;
        if self.blocks[block].refs > 0 {
            self.evict_until(count);
        }
        jobs.push(self.issue(block, to).ok()?);
        Some((from, count))
    }

    /// Shrinks every full block of a sequence to its floor, as far as free frames last. Returns
    /// whether all of them are there. For [`Mode::Static`](crate::pressure::Mode::Static).
    pub fn shrink_to_floor(&mut self, seq: SeqId, jobs: &mut Vec<ShrinkJob>) -> bool {
        let slot = self.seqs.slot(seq);
        let mut at_floor = true;
        for index in 0..self.seqs.at(slot).full_blocks() {
            let block = self.seqs.at(slot).blocks[index];
            let state = &self.blocks[block];
            at_floor &= !state.is_shrinking;
            if state.is_shrinking || state.cannot_shrink {
                continue;
            }
            // Not by what it takes without what nobody sees: its level depends on its sequence
            // alone, and what is seen also on others that share it.
            let levels = &self.config.levels;
            let Some(to) = levels.last_target(state.level, self.min_bits(block)) else {
                continue;
            };
            at_floor = false;
            jobs.extend(self.issue(block, to).ok());
        }
        at_floor
    }

    /// Puts a block in the right queue, after a change of anything that this depends on.
    pub(super) fn requeue(&mut self, id: BlockId) {
        if !self.config.shrinks() {
            return;
        }
        let queued = self.queue_of(id);
        let before = std::mem::replace(&mut self.blocks[id].queued, queued);
        if before != queued {
            self.queues.remove(id, before);
            self.queues.add(id, queued);
        }
    }

    /// The queue that a block belongs to.
    pub(super) fn queue_of(&self, id: BlockId) -> Queued {
        let block = &self.blocks[id];
        if !block.sealed || block.is_shrinking || block.cannot_shrink {
            return Queued::No;
        }
        let levels = self.levels_of(id);
        let next = levels.next_target(block.level, self.min_bits(id));
        match (next, block.refs) {
            (None, _) => Queued::No,
            (Some(_), 0) => Queued::Cached(block.cached_at),
            (Some(_), _) => Queued::Live(ShrinkRank {
                priority: Reverse(block.priority),
                frames: Reverse(self.config.level_frames(block.level) as u16),
                is_protected: block.protections > 0,
                sealed_at: block.sealed_at,
                block: id,
                held: self.held_frames(id) as u16,
            }),
        }
    }
}
