//! Memory for running sequences, as the [pressure policy](ebb_block_manager::pressure) gives it.

use ebb_block_manager::pressure::{Mode, Policy, Remedy, Shortage, Takeable};
use ebb_block_manager::{BLOCK_TOKENS, OutOfFrames, SUB_BLOCK_TOKENS};

use crate::FinishReason;
use crate::batch::Batch;
use crate::scheduler::Scheduler;
use crate::seq::Resident;
use crate::slab::Key;

/// Outcome of asking for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    /// The sequence may write its tokens.
    Granted,
    /// Not in this step.
    Later,
    /// The sequence was preempted itself and waits for admission.
    Lost,
}

impl Scheduler {
    /// Makes sure that tokens `0..len` of a running sequence have memory of their own.
    pub(crate) fn acquire(&mut self, key: Key, len: u32, batch: &mut Batch) -> Acquired {
        let seq = &self.seqs[key];
        let Some(resident) = seq.resident else {
            return Acquired::Lost;
        };
        if len <= seq.reserved {
            return Acquired::Granted;
        }
        let len = len.next_multiple_of(SUB_BLOCK_TOKENS as u32);
        if self.policy.mode.shrinks() {
            return self.acquire_or_wait(key, resident, len, batch);
        }
        loop {
            let Err(OutOfFrames { missing }) = self.blocks.grow(resident.id, len as usize) else {
                self.seqs[key].reserved = len;
                return Acquired::Granted;
            };
            batch.memory_short = true;
            match Policy::remedy(self.shortage(missing, batch)) {
                Remedy::Wait => return Acquired::Later,
                Remedy::Preempt => {
                    let victim = self.victim().expect("a shortage knows of one");
                    self.preempt(victim);
                    if victim == key {
                        return Acquired::Lost;
                    }
                }
                Remedy::Restart | Remedy::Fail => {
                    // Only the most urgent sequence is left, and it was checked on arrival that it
                    // fits alone. Should that ever be wrong, one request fails and not the server.
                    debug_assert!(false, "{} does not fit alone", resident.id);
                    self.fail(key);
                    return Acquired::Lost;
                }
            }
        }
    }

    fn shortage(&self, missing: u32, batch: &Batch) -> Shortage {
        let usage = self.blocks.usage();
        let unheld = usage.frames_total - usage.frames_live;
        let is_in_flight = !self.in_flight.is_empty();
        Shortage {
            needed: self.blocks.available() + missing,
            unheld: unheld.saturating_sub(usage.frames_reserve),
            // Copies of the step being planned hold frames, too.
            step_returns: is_in_flight || self.has_work(batch),
            is_in_flight,
            has_victim: self.running.len() > 1,
        }
    }

    pub(crate) fn fail(&mut self, key: Key) {
        let (group, choice) = (self.seqs[key].group, self.seqs[key].choice);
        self.end_choice(group, choice, FinishReason::Error);
    }

    /// [`acquire`](Self::acquire) where blocks shrink: what does not fit now comes later. Once one
    /// sequence has to wait, those after it get nothing new in this step, so that it is served
    /// first.
    fn acquire_or_wait(
        &mut self,
        key: Key,
        resident: Resident,
        len: u32,
        batch: &mut Batch,
    ) -> Acquired {
        let needed = self.blocks.frames_needed(resident.id, len as usize);
        let takeable = self.takeable(self.policy.watermarks.low);
        let may_take = needed == 0 || (!batch.memory_short && u64::from(needed) <= takeable);
        if may_take && self.blocks.grow(resident.id, len as usize).is_ok() {
            self.seqs[key].reserved = len;
            return Acquired::Granted;
        }
        self.put_off(needed, batch);
        Acquired::Later
    }

    fn put_off(&mut self, frames: u32, batch: &mut Batch) {
        batch.memory_short = true;
        batch.unmet_frames += u64::from(frames);
        self.counters.stalls += 1;
    }

    /// Frames that sequences may take, if so many are left to shrinks.
    fn takeable(&self, left_to_shrinks: u32) -> u64 {
        let usage = self.blocks.usage();
        let pool = Takeable {
            available: self.blocks.available(),
            coming: usage.frames_retiring + usage.frames_shrinking,
            can_shrink: self.blocks.can_shrink_live(),
        };
        self.policy.takeable(pool, left_to_shrinks)
    }

    /// How many of the next `wanted` tokens of a prompt a step may compute. Notes what the rest
    /// needs.
    pub(crate) fn prompt_that_fits(&mut self, key: Key, wanted: u32, batch: &mut Batch) -> u32 {
        let seq = &self.seqs[key];
        let (Some(resident), true) = (seq.resident, self.policy.mode.shrinks()) else {
            return wanted;
        };
        let wanted = match self.policy.mode {
            // What comes after the chunk reads it only once it has shrunk.
            Mode::Static => wanted.min(self.chunk(seq).end - seq.computed),
            Mode::PreemptOnly | Mode::Progressive => wanted,
        };
        let (computed, sub_block) = (seq.computed, SUB_BLOCK_TOKENS as u32);
        let reach = self.reach(key, computed + wanted);
        let needed = |blocks: &ebb_block_manager::BlockManager, len: u32| {
            let end = (computed + len).next_multiple_of(sub_block);
            blocks.frames_needed(resident.id, end as usize)
        };
        let all = needed(&self.blocks, reach - computed);
        let spare = if batch.memory_short {
            0
        } else {
            // What decoding sequences take in the next steps is theirs.
            let left = self.policy.left_by_prompts(self.prompt_frames);
            self.takeable(left).saturating_sub(batch.decode_frames)
        };
        if u64::from(all) <= spare {
            return wanted;
        }
        if self.policy.mode == Mode::Static && reach - computed > BLOCK_TOKENS as u32 {
            batch.prompt_cut = true;
            self.put_off(all, batch);
            return 0;
        }
        // Whole sub-blocks, as many as fit.
        let (mut fits, mut beyond) = (0, (computed % sub_block + wanted).div_ceil(sub_block));
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            if u64::from(needed(&self.blocks, up_to(computed, middle))) <= spare {
                fits = middle;
            } else {
                beyond = middle;
            }
        }
        let fits = up_to(computed, fits).min(wanted);
        let taken = if fits == 0 {
            0
        } else {
            needed(&self.blocks, fits)
        };
        batch.prompt_cut = true;
        batch.unmet_frames += u64::from(all - taken);
        if fits == 0 {
            self.put_off(0, batch);
        }
        fits
    }
}

/// Tokens from `computed` to the end of the `sub_blocks`-th sub-block, counted from the one it lies
/// in.
fn up_to(computed: u32, sub_blocks: u32) -> u32 {
    let sub_block = SUB_BLOCK_TOKENS as u32;
    (sub_blocks * sub_block).saturating_sub(computed % sub_block)
}
