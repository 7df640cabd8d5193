//! What the coming steps will need, and the shrinks that the step being planned does for them.

use ebb_block_manager::pressure::{
    Admission, DECODE_TOKENS_AHEAD, Demand, Mode, PROMPT_STEPS_AHEAD, PROMPTS_AHEAD,
};

use ebb_block_manager::ShrinkJob;

use crate::batch::Batch;
use crate::scheduler::Scheduler;
use crate::slab::Key;

impl Scheduler {
    /// The low and the high watermark in free frames: below the low one blocks begin to shrink, at
    /// the high one they stop ([`Mode::Progressive`]).
    pub fn watermarks(&self) -> (u32, u32) {
        (self.policy.watermarks.low, self.policy.watermarks.high)
    }

    /// Notes the memory that a sequence will ask for soon after the chunk or token just planned.
    pub(crate) fn note_demand(&self, key: Key, planned: u32, batch: &mut Batch) {
        if self.policy.mode != Mode::Progressive {
            return;
        }
        let seq = &self.seqs[key];
        let end = seq.computed + planned;
        if end >= seq.known() {
            let is_next = seq.reserved.max(end) < end + DECODE_TOKENS_AHEAD;
            let takes_one = is_next && end < seq.tokens_max();
            batch.decode_frames += u64::from(takes_one) * self.frames_of(1);
        } else {
            batch.next_prompt_tokens +=
                u64::from((seq.known() - end).min(self.config.prefill_chunk as u32));
        }
    }

    /// Tokens of the prompts that will be admitted next, up to about `most`, if others shrink for
    /// them. Those in the prefix cache are among them: what is found there is known at admission.
    fn waiting_tokens(&self, batch: &mut Batch, most: u64) -> u64 {
        if self.waiting.is_empty() || self.policy.admission == Admission::Queue {
            return 0;
        }
        let mut promised = self.promised_so_far(batch);
        let limit = self.policy.promises_max(true);
        let (mut choices, mut tokens) = (self.running_choices, 0);
        for &key in self.waiting.values().take(PROMPTS_AHEAD) {
            choices += self.sequence_count(key);
            promised += self.promise(key);
            if choices > self.config.max_running || promised > limit || tokens >= most {
                break;
            }
            tokens += u64::from(self.seqs[key].known());
        }
        tokens
    }

    /// Chooses the blocks that this step shrinks.
    pub(crate) fn shrink(&mut self, batch: &mut Batch) {
        if self.policy.mode == Mode::Progressive {
            let most = PROMPT_STEPS_AHEAD * self.config.max_step_tokens as u64;
            let tokens = (batch.next_prompt_tokens + self.waiting_tokens(batch, most)).min(most);
            let demand = Demand {
                unmet: batch.unmet_frames,
                decodes: batch.decode_frames,
                prompts: self.frames_of(tokens),
            };
            self.prompt_frames = match self.config.max_in_flight {
                1 => 0,
                _ => u32::try_from(demand.prompts).unwrap_or(u32::MAX),
            };
            let left_by_prompts = self.policy.left_by_prompts(self.prompt_frames);
            let pressure = self.policy.pressure(demand, left_by_prompts);
            self.blocks.shrink_for(&pressure, &mut batch.shrinks);
        }
        let live = batch.shrinks.iter().filter(|job| job.live);
        let freed = live.clone().map(ShrinkJob::frames_freed);
        let freed = freed.sum::<usize>() as u64;
        self.counters.shrinks += batch.shrinks.len() as u64;
        self.counters.shrinks_live += live.count() as u64;
        if freed > 0 && self.policy.mode == Mode::Progressive {
            let held = u64::from(self.blocks.usage().frames_live).max(1);
            self.counters.preemptions_avoided_milli +=
                freed * 1000 * self.running.len() as u64 / held;
        }
    }
}
