//! Planning a step: running sequences first, then admissions and shrinks.

use std::mem;

use ebb_block_manager::ShrinkJob;

use crate::memory::Acquired;
use crate::scheduler::Scheduler;
use crate::seq::Seq;
use crate::slab::Key;
use crate::{Config, Logits, StepPlan};

/// What the step being planned will compute. It is not written to a plan at once, since a sequence
/// may still be preempted for a later one of the same step.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The running sequences when planning began.
    order: Vec<Key>,
    prefills: Vec<Key>,
    pub(crate) slices: Vec<PlannedSlice>,
    pub(crate) token_budget: usize,
    pub(crate) logit_budget: usize,
    /// Frames that running sequences still take to complete their prompts and fork their choices.
    pub(crate) prompt_frames: u64,
    /// Memory was short: nothing is admitted in this step, and where blocks shrink no sequence gets
    /// more.
    pub(crate) memory_short: bool,
    /// The prompt being planned gets less memory than it could use.
    pub(crate) prompt_cut: bool,
    /// A sequence waits for its blocks to shrink to their floor.
    pub(crate) awaits_floor: bool,
    /// A running sequence gave its slot to the head of the queue: the step is planned anew, without
    /// what was planned and counted for it. Shrinks that were issued stay.
    pub(crate) replan: bool,
    /// Blocks to shrink.
    pub(crate) shrinks: Vec<ShrinkJob>,
    /// Frames that sequences asked for and did not get.
    pub(crate) unmet_frames: u64,
    /// Frames that decoding sequences take in the next steps.
    pub(crate) decode_frames: u64,
    /// Tokens of prompts that the next step could compute.
    pub(crate) next_prompt_tokens: u64,
    /// [`Scheduler::frames_promised`], once it was added up.
    pub(crate) frames_promised: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedSlice {
    pub(crate) seq: Key,
    pub(crate) len: u32,
    pub(crate) logits: Logits,
}

impl Batch {
    fn reset(&mut self, config: &Config) {
        self.order.clear();
        self.prefills.clear();
        self.slices.clear();
        self.token_budget = config.max_step_tokens;
        self.logit_budget = config.max_logit_rows;
        self.prompt_frames = 0;
        self.memory_short = false;
        (self.prompt_cut, self.awaits_floor) = (false, false);
        if !std::mem::take(&mut self.replan) {
            self.shrinks.clear();
        }
        (self.unmet_frames, self.decode_frames) = (0, 0);
        self.next_prompt_tokens = 0;
        self.frames_promised = None;
    }
}

impl Scheduler {
    /// Plans the next step. `None`: nothing to run now, or `max_in_flight` steps are in flight.
    pub fn plan(&mut self) -> Option<StepPlan> {
        if self.in_flight.len() >= self.config.max_in_flight {
            return None;
        }
        let mut batch = mem::take(&mut self.batch);
        let plan = loop {
            let plan = self.try_plan(&mut batch);
            // Each sequence yields only once, so this ends.
            if plan.is_some() || !(batch.replan || self.makes_room(&batch)) {
                break plan;
            }
        };
        self.batch = batch;
        plan
    }

    fn try_plan(&mut self, batch: &mut Batch) -> Option<StepPlan> {
        batch.reset(&self.config);
        let preemptions = self.counters.preemptions;
        self.plan_running(batch);
        if !batch.memory_short {
            self.admit(batch);
        } else if self.counters.preemptions == preemptions {
            // A preempted sequence may have left more than was missing.
            self.note_shortage();
        }
        if batch.replan {
            return None;
        }
        self.shrink(batch);
        self.submit(batch)
    }

    /// Whether planning again may give a plan, after nothing could run.
    fn makes_room(&mut self, batch: &Batch) -> bool {
        let is_stuck = batch.memory_short || batch.awaits_floor;
        if !is_stuck || !self.in_flight.is_empty() || self.running.is_empty() {
            return false;
        }
        // Where nothing shrinks, sequences were preempted for others that were then preempted too.
        !self.policy.mode.shrinks() || self.preempt_when_stuck()
    }

    /// Plans decodes, then prompts that have begun, each in order of urgency.
    fn plan_running(&mut self, batch: &mut Batch) {
        let mut order = mem::take(&mut batch.order);
        order.extend(self.running.iter().map(|(_, key)| *key));
        for &key in &order {
            // It may have been preempted for one before it.
            if self.seqs.get(key).is_none_or(|seq| seq.resident.is_none()) {
                continue;
            }
            if !self.is_at_floor(key, batch) {
                // It does not compute in this step, and its prompt still takes memory.
                batch.prompt_frames += self.frames_to_finish_prompt(key);
                continue;
            }
            let seq = &self.seqs[key];
            if seq.is_decoding() {
                self.plan_decode(key, batch);
            } else if seq.remaining() > 0 || seq.is_shared() {
                batch.prefills.push(key);
            }
        }
        batch.order = order;

        let mut prefills = mem::take(&mut batch.prefills);
        for &key in &prefills {
            self.plan_prefill(key, batch);
        }
        prefills.clear();
        batch.prefills = prefills;
    }

    fn plan_decode(&mut self, key: Key, batch: &mut Batch) {
        let len = self.seqs[key].computed + 1;
        if self.acquire(key, len, batch) == Acquired::Granted {
            batch.slices.push(PlannedSlice {
                seq: key,
                len: 1,
                logits: Logits::Last { choices: 1 },
            });
            // A step has tokens and logits for every running sequence.
            batch.token_budget -= 1;
            batch.logit_budget -= 1;
            self.note_demand(key, 1, batch);
        }
    }

    /// Plans the next tokens of a prompt or of a recomputation, as many as fit, and notes what it
    /// will need after that.
    pub(crate) fn plan_prefill(&mut self, key: Key, batch: &mut Batch) {
        let Some(seq) = self.seqs.get(key).filter(|seq| seq.resident.is_some()) else {
            return;
        };
        let computed = seq.computed;
        let wanted = self.wanted(seq, batch);
        let room = if wanted > 0 {
            self.prompt_that_fits(key, wanted, batch)
        } else {
            0
        };
        if let Some((len, logits)) = self.next_chunk(&self.seqs[key], room, batch) {
            let end = self.reach(key, computed + len);
            match self.acquire(key, end, batch) {
                Acquired::Granted => {
                    batch.slices.push(PlannedSlice {
                        seq: key,
                        len,
                        logits,
                    });
                    batch.token_budget -= len as usize;
                    batch.logit_budget -= match logits {
                        Logits::None => 0,
                        Logits::Last { .. } => 1,
                        Logits::All { .. } => len as usize,
                    };
                    self.note_demand(key, len, batch);
                }
                Acquired::Later => {}
                Acquired::Lost => return,
            }
        }
        batch.memory_short |= batch.prompt_cut;
        batch.prompt_frames += self.frames_to_finish_prompt(key);
    }

    /// Frames that a running sequence will still take before its choices decode.
    fn frames_to_finish_prompt(&self, key: Key) -> u64 {
        let seq = &self.seqs[key];
        let Some(resident) = seq.resident else {
            return 0;
        };
        let known = self.blocks.frames_needed(resident.id, seq.known() as usize);
        // Some of them come back behind the window before the last are taken.
        let rest = u64::from(seq.known().saturating_sub(seq.reserved));
        let given_back = self.frames_of(rest) - self.frames_at_most(rest);
        u64::from(known).saturating_sub(given_back) + self.fork_frames(key)
    }

    /// Tokens of a sequence that this step could compute if memory did not matter.
    fn wanted(&self, seq: &Seq, batch: &Batch) -> u32 {
        let rows = self.config.prefill_chunk.min(batch.token_budget);
        seq.remaining().min(rows as u32)
    }

    /// How many tokens of a sequence this step computes, at most `room`, and with which logits.
    fn next_chunk(&self, seq: &Seq, room: u32, batch: &Batch) -> Option<(u32, Logits)> {
        let remaining = seq.remaining();
        if remaining == 0 || room == 0 {
            return None;
        }
        let mut len = seq.states.cut(seq.computed, room);
        let mut all_logits = false;
        if seq.logprobs && seq.computed < seq.prompt_len {
            // Logits of every prompt token are delivered once: what was delivered before a
            // preemption is computed again without, and a slice has logits of all tokens or of
            // none.
            let done = self.groups[seq.group].logits_delivered;
            if seq.computed < done {
                len = len.min(done - seq.computed);
            } else {
                all_logits = true;
                len = len
                    .min(seq.prompt_len - seq.computed)
                    .min(batch.logit_budget as u32);
            }
        }
        let mut choices = if len == remaining {
            seq.samples_at_end()
        } else {
            0
        };
        if choices > 0 && !all_logits && batch.logit_budget == 0 {
            len -= 1;
            choices = 0;
        }
        let logits = match (all_logits, choices) {
            (true, choices) => Logits::All { choices },
            (false, 0) => Logits::None,
            (false, choices) => Logits::Last { choices },
        };
        (len > 0).then_some((len, logits))
    }

    /// Whether the step would compute anything.
    pub(crate) fn has_work(&self, batch: &Batch) -> bool {
        let seq = |intent: &PlannedSlice| self.seqs.get(intent.seq);
        batch
            .slices
            .iter()
            .filter_map(seq)
            .any(|seq| seq.resident.is_some())
    }
}
