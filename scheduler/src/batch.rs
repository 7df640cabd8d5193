//! Planning a step: running sequences first, then admissions, then the plan is written.

use std::mem;

use ebb_block_manager::{ShrinkJob, StepId};

use crate::in_flight::{InFlight, Sent};
use crate::pressure::Acquired;
use crate::scheduler::Scheduler;
use crate::seq::Seq;
use crate::slab::Key;
use crate::{Config, Logits, Slice, StepPlan};

/// What a step will compute, before it is written down: a later sequence of the same step may
/// still take the memory of an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The running sequences when planning began.
    order: Vec<Key>,
    prefills: Vec<Key>,
    intents: Vec<Intent>,
    pub(crate) rows_left: usize,
    pub(crate) logit_rows_left: usize,
    /// Frames that admitted sequences will still take to complete their prompts and part their
    /// choices.
    pub(crate) promised: u64,
    /// Memory was short: nothing is admitted in this step, and where blocks shrink nobody gets
    /// more.
    pub(crate) pressed: bool,
    /// The prompt being planned gets less memory than it could use.
    pub(crate) short: bool,
    /// A sequence waits for its blocks to go to their place.
    pub(crate) unsettled: bool,
    /// Blocks to transcode.
    pub(crate) shrinks: Vec<ShrinkJob>,
    /// Frames that sequences wanted and did not get.
    pub(crate) demand: u64,
    /// Frames that decoding sequences take in the next steps.
    pub(crate) soon: u64,
    /// Tokens of prompts that the next step could compute.
    pub(crate) prefill_next: u64,
    /// [`Scheduler::frames_promised`], once asked for.
    pub(crate) frames_promised: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Intent {
    seq: Key,
    len: u32,
    logits: Logits,
}

impl Batch {
    fn reset(&mut self, config: &Config) {
        self.order.clear();
        self.prefills.clear();
        self.intents.clear();
        self.rows_left = config.max_step_tokens;
        self.logit_rows_left = config.max_logit_rows;
        self.promised = 0;
        self.pressed = false;
        (self.short, self.unsettled) = (false, false);
        self.shrinks.clear();
        (self.demand, self.soon, self.prefill_next) = (0, 0, 0);
        self.frames_promised = None;
    }
}

impl Scheduler {
    /// Plans the next step. `None`: nothing to run now, or `max_in_flight` steps are out.
    pub fn plan(&mut self) -> Option<StepPlan> {
        if self.in_flight.len() >= self.config.max_in_flight {
            return None;
        }
        let mut batch = mem::take(&mut self.batch);
        let plan = loop {
            batch.reset(&self.config);
            let preemptions = self.counters.preemptions;
            self.plan_running(&mut batch);
            if batch.pressed {
                // Who lost its memory left more than was missing, perhaps.
                if self.counters.preemptions == preemptions {
                    self.note_pressure();
                }
            } else {
                self.admit(&mut batch);
            }
            self.shrink(&mut batch);
            let plan = self.submit(&mut batch);
            if plan.is_some() || !self.in_flight.is_empty() || self.running.is_empty() {
                break plan;
            }
            // Those who lost their memory to others that then lost it too made room for the rest.
            let again = batch.pressed || batch.unsettled;
            if !again || (self.config.mode.shrinks() && !self.preempt_for_want_of_shrinks()) {
                break plan;
            }
        };
        self.batch = batch;
        plan
    }

    /// Decodes, then prompts that have begun, each in order of urgency.
    fn plan_running(&mut self, batch: &mut Batch) {
        let mut order = mem::take(&mut batch.order);
        order.extend(self.running.iter().map(|(_, key)| *key));
        for &key in &order {
            // One before it may have taken its memory.
            if self.seqs.get(key).is_none_or(|seq| seq.resident.is_none()) {
                continue;
            }
            if !self.is_settled(key, batch) {
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
            batch.intents.push(Intent {
                seq: key,
                len: 1,
                logits: Logits::Last { choices: 1 },
            });
            // There are as many rows as sequences may run, of both kinds.
            batch.rows_left -= 1;
            batch.logit_rows_left -= 1;
            self.note_demand(key, 1, batch);
        }
    }

    /// Plans the next chunk of a prompt or of a recomputation, if there is room, and notes what it
    /// will need after that.
    pub(crate) fn plan_prefill(&mut self, key: Key, batch: &mut Batch) {
        let Some(seq) = self.seqs.get(key).filter(|seq| seq.resident.is_some()) else {
            return;
        };
        let computed = seq.computed;
        let wanted = self.wanted(seq, batch);
        let room = if wanted > 0 {
            self.room(key, wanted, batch)
        } else {
            0
        };
        if let Some((len, logits)) = self.next_chunk(&self.seqs[key], room, batch) {
            let end = self.reach(key, computed + len);
            match self.acquire(key, end, batch) {
                Acquired::Granted => {
                    batch.intents.push(Intent {
                        seq: key,
                        len,
                        logits,
                    });
                    batch.rows_left -= len as usize;
                    batch.logit_rows_left -= match logits {
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
        batch.pressed |= batch.short;
        batch.promised += self.promised(key);
    }

    /// Frames that a running sequence will still take before it decodes.
    fn promised(&self, key: Key) -> u64 {
        let seq = &self.seqs[key];
        let Some(resident) = seq.resident else {
            return 0;
        };
        let known = self.blocks.frames_needed(resident.id, seq.known() as usize);
        u64::from(known) + self.parting_frames(key)
    }

    /// How much of a sequence this step could compute if memory did not matter.
    fn wanted(&self, seq: &Seq, batch: &Batch) -> u32 {
        let rows = self.config.prefill_chunk.min(batch.rows_left);
        seq.remaining().min(rows as u32)
    }

    /// How much of a sequence to compute in this step, at most `room`, and which logits that gives.
    fn next_chunk(&self, seq: &Seq, room: u32, batch: &Batch) -> Option<(u32, Logits)> {
        let remaining = seq.remaining();
        if remaining == 0 || room == 0 {
            return None;
        }
        let mut len = room;
        let mut all_rows = false;
        if seq.logprobs && seq.computed < seq.prompt_len {
            // Every prompt row's logits are delivered once: what was delivered before a preemption
            // is computed again without, and a chunk has all of its rows or none.
            let done = self.groups[seq.group].rows_done;
            if seq.computed < done {
                len = len.min(done - seq.computed);
            } else {
                all_rows = true;
                len = len
                    .min(seq.prompt_len - seq.computed)
                    .min(batch.logit_rows_left as u32);
            }
        }
        let mut choices = if len == remaining {
            seq.samples_at_end()
        } else {
            0
        };
        if choices > 0 && !all_rows && batch.logit_rows_left == 0 {
            len -= 1;
            choices = 0;
        }
        let logits = match (all_rows, choices) {
            (true, choices) => Logits::All { choices },
            (false, 0) => Logits::None,
            (false, choices) => Logits::Last { choices },
        };
        (len > 0).then_some((len, logits))
    }

    /// Whether anything would be computed.
    pub(crate) fn has_work(&self, batch: &Batch) -> bool {
        let seq = |intent: &Intent| self.seqs.get(intent.seq);
        batch
            .intents
            .iter()
            .filter_map(seq)
            .any(|seq| seq.resident.is_some())
    }

    /// Writes the plan, and takes note of what is now in flight.
    fn submit(&mut self, batch: &mut Batch) -> Option<StepPlan> {
        if !self.has_work(batch) && batch.shrinks.is_empty() {
            return None;
        }

        self.counters.steps += 1;
        let step = StepId(self.counters.steps);
        let mut plan = self.spare_plans.pop().unwrap_or_else(StepPlan::empty);
        plan.clear();
        plan.step = step;
        let mut sent = self.spare_in_flight.pop().unwrap_or_else(|| InFlight {
            step,
            slices: Vec::new(),
            copies: Vec::new(),
        });
        sent.step = step;
        sent.slices.clear();
        sent.copies.clear();

        for &Intent {
            seq: key,
            len,
            logits,
        } in &batch.intents
        {
            // A later one of this step may have taken its memory.
            let Some(seq) = self.seqs.get_mut(key) else {
                continue;
            };
            let Some(resident) = seq.resident else {
                continue;
            };
            let first = plan.tokens.len() as u32;
            let position = seq.computed;
            if len == 1 && position >= seq.prompt_len {
                let at = (position - seq.prompt_len) as usize;
                plan.tokens.push(
                    seq.generated
                        .get(at)
                        .copied()
                        .unwrap_or(crate::SAMPLED_LATER),
                );
            } else {
                seq.write_tokens(&self.groups[seq.group].prompt, len, &mut plan.tokens);
                self.counters.tokens_prefill += u64::from(len);
            }
            let tokens = first..plan.tokens.len() as u32;
            debug_assert_eq!(tokens.len(), len as usize);
            let (request, choice) = (seq.request, seq.choice);
            plan.slices.push(Slice {
                seq: resident.id,
                request,
                choice,
                slot: resident.slot,
                position,
                tokens,
                logits,
            });
            let samples = logits.choices();
            sent.slices.push(Sent {
                seq: key,
                epoch: seq.epoch,
                id: resident.id,
                request,
                choice,
                position,
                len,
                samples,
                all_rows: matches!(logits, Logits::All { .. }),
            });
            seq.computed += len;
            seq.pending += u32::from(samples == 1);
            seq.in_flight += 1;
        }
        self.counters.tokens_scheduled += plan.tokens.len() as u64;

        if self.config.mode.shrinks() {
            for slice in &plan.slices {
                let rows = slice.tokens.end - slice.tokens.start;
                self.blocks.note_read(slice.seq, rows);
            }
        }
        plan.shrinks.append(&mut batch.shrinks);
        self.blocks.drain_copies(&mut plan.copies);
        sent.copies.extend_from_slice(&plan.copies);
        self.blocks.drain_deltas(&mut plan.deltas);
        self.blocks.begin_step(step);
        self.in_flight.push_back(sent);
        Some(plan)
    }
}
