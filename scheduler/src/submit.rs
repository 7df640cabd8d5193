//! Writing a step's plan.

use ebb_block_manager::StepId;

use crate::batch::{Batch, PlannedSlice};
use crate::in_flight::{SliceInFlight, StepInFlight};
use crate::scheduler::Scheduler;
use crate::{Logits, Slice, StepPlan};

impl Scheduler {
    /// Writes the plan and puts the step in flight. `None`: there is nothing to do.
    pub(crate) fn submit(&mut self, batch: &mut Batch) -> Option<StepPlan> {
        if !self.has_work(batch) && batch.shrinks.is_empty() {
            return None;
        }

        self.counters.steps += 1;
        let step = StepId(self.counters.steps);
        let mut plan = self.spare_plans.pop().unwrap_or_else(StepPlan::empty);
        plan.clear();
        plan.step = step;
        let mut in_flight = self.spare_in_flight.pop().unwrap_or_else(|| StepInFlight {
            step,
            slices: Vec::new(),
            copies: Vec::new(),
        });
        in_flight.step = step;
        in_flight.slices.clear();
        in_flight.copies.clear();

        for &PlannedSlice {
            seq: key,
            len,
            logits,
        } in &batch.slices
        {
            // It may have been preempted for a later one of this step.
            if self.seqs.get(key).is_some() {
                self.take_state(key);
            }
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
            in_flight.slices.push(SliceInFlight {
                seq: key,
                epoch: seq.epoch,
                id: resident.id,
                request,
                choice,
                position,
                len,
                samples,
                all_logits: matches!(logits, Logits::All { .. }),
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
        plan.state_copies.append(&mut self.state_copies);
        in_flight.copies.extend_from_slice(&plan.copies);
        self.blocks.drain_deltas(&mut plan.deltas);
        self.blocks.begin_step(step);
        self.in_flight.push_back(in_flight);
        Some(plan)
    }
}
