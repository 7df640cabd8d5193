//! Precision as a resource: what is promised to whom at the floor, how much of a prompt memory lets
//! a step compute, and which blocks shrink.
//!
//! Where blocks shrink, nothing is preempted to let a sequence grow: it waits for a step or two
//! while others shrink. Admission keeps the sum of all promises ([`Seq::floor_frames`]) within the
//! pool, so that waiting always ends; preemption remains for pools that are overcommitted and for
//! blocks that cannot be transcoded.

use std::ops::Range;

use ebb_block_manager::{BLOCK_TOKENS, Pressure, SUB_BLOCK_TOKENS};

use crate::batch::Batch;
use crate::pressure::Acquired;
use crate::scheduler::Scheduler;
use crate::seq::{Resident, Seq};
use crate::slab::Key;
use crate::{Admission, FinishReason, Mode};

/// Waiting sequences whose prompts count as demand, at most.
const WAITING_AHEAD: usize = 64;
/// Steps whose prompts count as demand: what shrinks with the step that is being planned comes free
/// when that one has returned, and another is planned before it has.
const PROMPT_STEPS_AHEAD: u64 = 2;

/// Of so many frames of the pool one may be kept for what shrinks is written to, whatever there is
/// to shrink for.
const KEPT_SHARE: u32 = 8;

/// Steps ahead of which a decoding sequence's next sub-block counts as demand: one that is being
/// planned while the one before runs.
const STEPS_AHEAD: u32 = 2;

impl Scheduler {
    /// Frames promised to the running sequences: each at its longest, at its floor.
    pub(crate) fn frames_promised(&self) -> u64 {
        if !self.config.mode.shrinks() {
            return 0;
        }
        let promise = |&(_, key): &(_, Key)| self.promise(key);
        self.running.iter().map(promise).sum()
    }

    fn promise(&self, key: Key) -> u64 {
        self.seqs[key].floor_frames * self.weight(key) as u64
    }

    /// Whether a waiting sequence's promise can be kept beside those given. One that runs alone
    /// needs none: it was checked on arrival that each of its choices fits.
    pub(crate) fn fits_at_floor(&self, key: Key, batch: &mut Batch) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let given = self.given(batch);
        // One that lost its memory to a bet comes back only when nothing is betted on.
        let mut percent = self.config.overcommit_percent;
        if self.seqs[key].preempted {
            percent = percent.min(100);
        }
        let sum = given + self.promise(key);
        let fits = sum <= self.promises_max(percent);
        if fits {
            batch.frames_promised = Some(sum);
        }
        fits
    }

    /// [`frames_promised`](Self::frames_promised), added up once a plan.
    fn given(&self, batch: &mut Batch) -> u64 {
        *batch
            .frames_promised
            .get_or_insert_with(|| self.frames_promised())
    }

    /// Frames that may be promised, of a share of the pool in percent.
    fn promises_max(&self, percent: u32) -> u64 {
        let promised = u64::from(self.capacity).saturating_sub(self.chunk_frames());
        promised * u64::from(percent) / 100
    }

    /// [`Config::chunk_frames`](crate::Config::chunk_frames) of the pool.
    pub(crate) fn chunk_frames(&self) -> u64 {
        self.config.chunk_frames(self.blocks.config()).into()
    }

    /// [`Mode::Static`]: from where to where the tokens at which a sequence is may read each other
    /// at 16 bit: the chunk of its prompt, or behind the prompt a block. It depends on the sequence
    /// alone, also when it is computed anew.
    fn chunk(&self, seq: &Seq) -> Range<u32> {
        let block = BLOCK_TOKENS as u32;
        let (len, most) = if seq.computed < seq.prompt_len {
            (self.config.static_chunk, seq.prompt_len)
        } else {
            (block, u32::MAX)
        };
        let begin = seq.computed / len * len;
        begin..(begin + len).min(most)
    }

    /// Where the memory that a sequence takes for the next tokens up to `end` has to reach: a chunk
    /// is not begun without room for all of it, or two that are half done could wait for each
    /// other.
    pub(crate) fn reach(&self, key: Key, end: u32) -> u32 {
        let chunk = self.chunk(&self.seqs[key]);
        if self.config.mode == Mode::Static && chunk.len() > BLOCK_TOKENS {
            chunk.end
        } else {
            end
        }
    }

    /// [`acquire`](Self::acquire) where blocks shrink: what does not fit now comes later. Once one
    /// sequence was put off, those after it get nothing new in this step, so that it is served
    /// first.
    pub(crate) fn acquire_or_wait(
        &mut self,
        key: Key,
        resident: Resident,
        len: u32,
        batch: &mut Batch,
    ) -> Acquired {
        let needed = self.blocks.frames_needed(resident.id, len as usize);
        let (kept, _) = self.watermarks();
        let may_take = needed == 0 || (!batch.pressed && u64::from(needed) <= self.takeable(kept));
        if may_take && self.blocks.grow(resident.id, len as usize).is_ok() {
            self.seqs[key].reserved = len;
            return Acquired::Granted;
        }
        self.put_off(needed, batch);
        Acquired::Later
    }

    fn put_off(&mut self, frames: u32, batch: &mut Batch) {
        batch.pressed = true;
        batch.demand += u64::from(frames);
        self.counters.stalls += 1;
    }

    /// How many of the next `wanted` tokens of a prompt a step may compute. Notes what the others
    /// need.
    pub(crate) fn room(&mut self, key: Key, wanted: u32, batch: &mut Batch) -> u32 {
        let seq = &self.seqs[key];
        let (Some(resident), true) = (seq.resident, self.config.mode.shrinks()) else {
            return wanted;
        };
        let wanted = match self.config.mode {
            // What comes after the chunk reads it as it is once it has gone to its place.
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
        let spare = if batch.pressed {
            0
        } else {
            // What decoding sequences take in the next steps is theirs.
            let kept = self.kept_from_prompts();
            self.takeable(kept).saturating_sub(batch.soon)
        };
        if u64::from(all) <= spare {
            return wanted;
        }
        if self.config.mode == Mode::Static && reach - computed > BLOCK_TOKENS as u32 {
            batch.short = true;
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
        let room = up_to(computed, fits).min(wanted);
        let taken = if room == 0 {
            0
        } else {
            needed(&self.blocks, room)
        };
        batch.short = true;
        batch.demand += u64::from(all - taken);
        if room == 0 {
            self.put_off(0, batch);
        }
        room
    }

    /// Frames that sequences may take. While blocks can shrink, `kept` frames are left to what they
    /// are written to: the less there is the fewer come free in a step, and a pool that is short of
    /// both would never catch up.
    fn takeable(&self, kept: u32) -> u64 {
        let available = u64::from(self.blocks.available());
        if self.config.mode != Mode::Progressive || !self.blocks.can_shrink_live() {
            return available;
        }
        let usage = self.blocks.usage();
        let coming = usage.frames_retiring + usage.frames_shrinking;
        available.saturating_sub(u64::from(kept.saturating_sub(coming)))
    }

    /// Frames that prompts leave to shrinks: the low watermark, or, where two steps are in flight,
    /// as much as the prompts of the coming ones will take, if the pool has so many to spare. A
    /// block that is halved is written before it comes free, and that is two steps later: to free
    /// what a step of prompts takes, about as much has to be free already, or steps of prompts and
    /// steps that only wait for memory take turns.
    fn kept_from_prompts(&self) -> u32 {
        let (low, _) = self.watermarks();
        low.max(self.prompt_frames.min(self.capacity / KEPT_SHARE))
    }

    /// The low and the high watermark in frames that are free: below the low one blocks begin to
    /// shrink, at the high one they stop ([`Mode::Progressive`]). In a small pool, where a share of
    /// it is less than a few blocks, the low one is room for a few shrinks at once.
    pub fn watermarks(&self) -> (u32, u32) {
        let share = |permille: u32| (u64::from(self.capacity) * u64::from(permille) / 1000) as u32;
        let shrinks = self.blocks.config().held_back() * 4;
        let low =
            share(self.config.low_water_permille).max(shrinks.min(self.capacity / KEPT_SHARE));
        let above = share(self.config.high_water_permille - self.config.low_water_permille);
        (low, low + above)
    }

    /// [`Mode::Static`]: whether the blocks before the tokens that a sequence is at are where they
    /// belong, so that it may read them. If not, takes them there.
    pub(crate) fn is_settled(&mut self, key: Key, batch: &mut Batch) -> bool {
        let seq = &self.seqs[key];
        let (Some(resident), Mode::Static) = (seq.resident, self.config.mode) else {
            return true;
        };
        // What comes before the tokens that it is at.
        let begin = self.chunk(seq).start;
        let full = begin / BLOCK_TOKENS as u32;
        if seq.settled == full {
            return true;
        }
        // What a step in flight fills is not sealed yet; and should the step that ends a prompt
        // fail, its chunk reads itself again.
        let in_prompt = seq.computed < seq.prompt_len;
        if seq.committed
            < if in_prompt {
                begin
            } else {
                begin.max(seq.prompt_len)
            }
        {
            return false;
        }
        let is_settled = self.blocks.settle(resident.id, &mut batch.shrinks);
        if is_settled {
            self.seqs[key].settled = full;
        } else {
            batch.unsettled = true;
        }
        is_settled
    }

    /// Notes the memory that a sequence will ask for soon after the chunk or token just planned.
    pub(crate) fn note_demand(&self, key: Key, planned: u32, batch: &mut Batch) {
        if self.config.mode != Mode::Progressive {
            return;
        }
        let seq = &self.seqs[key];
        let end = seq.computed + planned;
        if end >= seq.known() {
            let next = seq.reserved.max(end) < end + STEPS_AHEAD && end < seq.tokens_max();
            batch.soon += u64::from(next) * self.frames_of(1);
        } else {
            batch.prefill_next +=
                u64::from((seq.known() - end).min(self.config.prefill_chunk as u32));
        }
    }

    /// Tokens of the prompts that will be admitted next, up to about `most`, if others shrink for
    /// them. Those in the prefix cache are among them: what is found there is known at admission.
    fn waiting_tokens(&self, batch: &mut Batch, most: u64) -> u64 {
        if self.waiting.is_empty() || self.config.admission == Admission::Queue {
            return 0;
        }
        let mut promised = self.given(batch);
        let limit = self.promises_max(self.config.overcommit_percent.min(100));
        let (mut choices, mut tokens) = (self.running_choices, 0);
        for &key in self.waiting.values().take(WAITING_AHEAD) {
            choices += self.weight(key);
            promised += self.promise(key);
            if choices > self.config.max_running || promised > limit || tokens >= most {
                break;
            }
            tokens += u64::from(self.seqs[key].known());
        }
        tokens
    }

    /// Chooses the blocks that this step transcodes.
    pub(crate) fn shrink(&mut self, batch: &mut Batch) {
        if self.config.mode == Mode::Progressive {
            let most = PROMPT_STEPS_AHEAD * self.config.max_step_tokens as u64;
            let prefill = (batch.prefill_next + self.waiting_tokens(batch, most)).min(most);
            let demand = batch.demand + batch.soon + self.frames_of(prefill);
            let frames = |n| u32::try_from(n).unwrap_or(u32::MAX);
            self.prompt_frames = match self.config.max_in_flight {
                1 => 0,
                _ => frames(self.frames_of(prefill)),
            };
            let (low, high) = self.watermarks();
            let kept = self.kept_from_prompts();
            let pressure = Pressure {
                demand: frames(demand),
                soon: frames(batch.soon),
                low: kept,
                high: high + (kept - low),
                live_max: frames(self.config.live_bytes_max / self.blocks.config().frame_bytes),
                bytes_max: self.config.shrink_bytes_max,
                cold: self.config.admission == Admission::Degrade,
            };
            self.blocks.relieve(&pressure, &mut batch.shrinks);
        }
        let live = batch.shrinks.iter().filter(|job| job.live);
        let freed = live.clone().map(|job| job.old.len() - job.new.len());
        let freed = freed.sum::<usize>() as u64;
        self.counters.shrinks += batch.shrinks.len() as u64;
        self.counters.shrinks_live += live.count() as u64;
        if freed > 0 && self.config.mode == Mode::Progressive {
            let held = u64::from(self.blocks.usage().frames_live).max(1);
            self.counters.preemptions_avoided_milli +=
                freed * 1000 * self.running.len() as u64 / held;
        }
    }

    /// Nothing runs, nothing is in flight and nothing can shrink: one sequence gives its memory up.
    /// False if there was none to.
    pub(crate) fn preempt_for_want_of_shrinks(&mut self) -> bool {
        let Some(&(_, only)) = self.running.first() else {
            return false;
        };
        if let Some(victim) = self.victim() {
            self.preempt(victim);
            return true;
        }
        // It is alone, and what it shares with others that have ended keeps it from fitting;
        // computed anew it does. Unless it cannot be transcoded: then one request fails and not the
        // server.
        let seq = &mut self.seqs[only];
        let known = seq.known();
        if std::mem::replace(&mut seq.given_up_at, known) < known {
            self.preempt(only);
        } else {
            let (group, choice) = (seq.group, seq.choice);
            self.end_choice(group, choice, FinishReason::Error);
        }
        true
    }
}

/// Tokens from `computed` to the end of the `sub_blocks`-th sub-block, counted from the one it lies
/// in.
fn up_to(computed: u32, sub_blocks: u32) -> u32 {
    let sub_block = SUB_BLOCK_TOKENS as u32;
    (sub_blocks * sub_block).saturating_sub(computed % sub_block)
}
