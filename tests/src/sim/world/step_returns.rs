//! Steps return: outputs, failures, lost samples.

use ebb_scheduler::{ChoiceOutput, Event, Logits, RequestId};

use super::World;
use crate::sim::device::Submitted;
use crate::sim::model::{Sampled, VOCAB, sample};
use crate::sim::workload::chance;

impl World {
    /// The oldest step returns, with or without a failure.
    pub(super) fn step_returns(&mut self) -> Result<(), String> {
        let again = self.failed_last && chance(&mut self.rng, self.settings.fail_again_one_in);
        let fails = again || chance(&mut self.rng, self.settings.fail_one_in);
        self.failed_last = fails;
        let Some(step) = self.device.pop() else {
            return Ok(());
        };
        let id = step.plan.step;
        if fails {
            self.device.run_failing(&step);
            for (slice, void) in step.plan.slices.iter().zip(&step.void) {
                if !void {
                    self.clients.slice_failed(slice.request.0, slice.choice);
                }
                // Slices planned since read what it should have written, or should have copied.
                if !void || self.device.lacks_copy(&step, slice) {
                    self.device.void(slice.seq);
                }
            }
            self.device.void_states();
            self.apply(Event::StepFailed { step: id })?;
        } else {
            let clients = &self.clients;
            let slices = &step.plan.slices;
            let expected = |index: usize| {
                let slice: &ebb_scheduler::Slice = &slices[index];
                clients.expected(slice.request.0, slice.choice)
            };
            let (rng, one_in) = (&mut self.rng, self.settings.fail_shrink_one_in);
            let mut failed_shrinks = Vec::new();
            let fails = |block| {
                let fails = chance(rng, one_in);
                failed_shrinks.extend(fails.then_some(block));
                fails
            };
            let lowest = self.device.run(&step, expected, fails)?;
            for ((slice, void), lowest) in slices.iter().zip(&step.void).zip(lowest) {
                if !void {
                    self.clients.read(slice.request.0, slice.choice, lowest);
                }
            }
            let outputs = self.outputs(&step)?;
            self.apply(Event::StepDone {
                step: id,
                outputs,
                failed_shrinks,
            })?;
        }
        self.scheduler.recycle(step.plan);
        Ok(())
    }

    /// Samples for a step that ran, and keeps the records.
    fn outputs(&mut self, step: &Submitted) -> Result<Vec<ChoiceOutput>, String> {
        let mut outputs = Vec::new();
        let mut used = Vec::new();
        let mut lost = Vec::new();
        for (slice, void) in step.plan.slices.iter().zip(&step.void) {
            let request = slice.request.0;
            let record = self.clients.record(request);
            let choices = slice.logits.choices();
            let range = if choices > 1 {
                0..choices
            } else {
                slice.choice..slice.choice + choices
            };
            let shared = choices > 1;
            let context = record.context(slice.choice);
            let seed = record.sampling_seed;
            let sampled: Vec<(u32, Sampled)> = range
                .map(|c| (c, sample(context, seed, c, self.settings.stop_one_in)))
                .collect();
            let output = |(choice, sampled): (u32, Sampled)| ChoiceOutput {
                request: slice.request,
                choice,
                token: sampled.token,
                finish: sampled.finish,
            };
            if *void {
                // A void slice samples as well.
                let garbage = Sampled {
                    token: VOCAB + 7,
                    finish: self.rng.one_in(2),
                };
                outputs.extend(sampled.iter().map(|(c, _)| output((*c, garbage))));
                continue;
            }
            let live: Vec<u32> = sampled.iter().map(|(c, _)| *c).collect();
            let live: Vec<u32> = live
                .into_iter()
                .filter(|c| self.clients.is_live(request, *c))
                .collect();
            used.extend(live.iter().map(|c| (slice.request, *c)));
            if !live.is_empty() && chance(&mut self.rng, self.settings.lose_one_in) {
                let gone = self.rng.pick(&live);
                outputs.extend(
                    sampled
                        .iter()
                        .filter(|(c, _)| *c != gone)
                        .map(|s| output(*s)),
                );
                lost.push((slice.seq, request, slice.choice));
                continue;
            }
            outputs.extend(sampled.iter().map(|s| output(*s)));
            let end = slice.position + slice.tokens.len() as u32;
            let all_rows = matches!(slice.logits, Logits::All { .. });
            let positions = (slice.position, end);
            self.clients
                .slice_ran(request, slice.choice, positions, all_rows)?;
            for (choice, sampled) in sampled {
                let record = self.clients.record(request);
                let at = end as usize - record.request.prompt.len();
                if record.choices[choice as usize].tokens.len() != at {
                    return Err(format!(
                        "{} {choice}: token {at} out of order",
                        slice.request
                    ));
                }
                self.clients.sampled(request, choice, sampled);
            }
            if shared {
                self.clients.fork_choices(request);
            }
        }
        let mut awaited: Vec<_> = self.scheduler.awaited().collect();
        awaited.sort_unstable();
        used.sort_unstable();
        if awaited != used {
            return Err(format!(
                "{} awaits {awaited:?}, not {used:?}",
                step.plan.step
            ));
        }
        for (seq, request, choice) in lost {
            self.clients.slice_failed(request, choice);
            self.device.void(seq);
        }
        if chance(&mut self.rng, self.settings.noise_one_in) {
            let unknown = RequestId(self.workload.made() + 5);
            outputs.push(ChoiceOutput {
                request: unknown,
                choice: 0,
                token: 1,
                finish: true,
            });
            let len = outputs.len() as u64;
            for i in 0..outputs.len() {
                outputs.swap(i, self.rng.below(len) as usize);
            }
        }
        Ok(outputs)
    }
}
