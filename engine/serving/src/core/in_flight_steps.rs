//! Steps on their way: submitted to the backend before the ones ahead of them are done, and read
//! when they come back.

use std::time::Instant;

use ebb_kernels::backend::{BackendError, SampledToken, StepInput, StepOutput, pending_sample};
use ebb_scheduler::{
    ChoiceOutput, Event, Logits, RequestId, SAMPLED_LATER, Scheduler, Slice, StepPlan,
};
use rustc_hash::FxHashMap;

use super::active_request::{ActiveRequest, Advanced};
use super::recording::Recording;
use super::run::EngineThread;
use super::{RequestError, TokenLogprobs, step};
use crate::metrics::StepStats;
use crate::sampling::{Sampled, Sampler, TokenLogprobs as Report};

/// A step that was planned and has not come back.
pub(super) struct InFlight {
    plan: StepPlan,
    /// Whose token each of its samples is; empty if the engine samples.
    targets: Vec<(RequestId, u32)>,
    planning: Instant,
    submitted: Instant,
    /// Why the backend did not take it.
    refused: Option<BackendError>,
}

/// The device is lost: no step will ever run again.
#[derive(Debug)]
pub(super) struct Lost;

impl EngineThread {
    /// Hands a plan to the backend.
    pub(super) fn submit_step(&mut self, plan: StepPlan, planning: Instant) -> Result<(), Lost> {
        let submitted = Instant::now();
        step::fill(&mut self.input, &plan, self.device_samples);
        let mut targets = self.spare_targets.pop().unwrap_or_default();
        targets.clear();
        if self.device_samples {
            fill_samples(&mut self.input, &plan, &mut self.live, &mut targets);
        }
        for slice in &plan.slices {
            if let Some(live) = self.live.get_mut(&slice.request) {
                live.meter
                    .scheduled(submitted, live.request.prompt.len(), live.cached_tokens);
                if let Some(recording) = &mut self.recording {
                    let table = self.scheduler.blocks().table(slice.seq);
                    let bits = self.scheduler.bits(slice.request, slice.choice);
                    let lowest = bits.unwrap_or_default().lowest;
                    recording.slice(slice, live, table, lowest);
                }
            }
        }
        let refused = self.backend.submit(&self.input).err();
        if let Some(error) = &refused {
            check_lost(error)?;
        }
        let drain = refused.is_some();
        self.in_flight.push_back(InFlight {
            plan,
            targets,
            planning,
            submitted,
            refused,
        });
        // A later step may take tokens that this one was to sample: none is planned before it has
        // been given up.
        while drain && !self.in_flight.is_empty() {
            self.finish_step()?;
        }
        Ok(())
    }

    /// Waits for the oldest step in flight and reads what it computed.
    pub(super) fn finish_step(&mut self) -> Result<(), Lost> {
        let Some(flight) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let InFlight {
            plan,
            targets,
            planning,
            submitted,
            refused,
        } = flight;
        let result = match refused {
            Some(error) => Err(error),
            None => self.backend.wait(),
        };
        let output = match result {
            Ok(output) => output,
            Err(error) => {
                check_lost(&error)?;
                let rows = plan.tokens.len();
                tracing::error!(%error, rows, "a step failed; its sequences will be tried again");
                self.scheduler.apply(Event::StepFailed { step: plan.step });
                self.scheduler.recycle(plan);
                self.spare_targets.push(targets);
                return Ok(());
            }
        };
        self.steps += 1;
        for failure in output.failed_shrinks {
            tracing::warn!(%failure, "a KV block cannot be shrunk and keeps its width");
        }
        let failed = output.failed_shrinks.iter();
        let failed_shrinks = failed.map(|f| plan.shrinks[f.shrink].block).collect();
        let shrink = output.shrink_time;
        let now = Instant::now();
        let mut reading = Reading {
            scheduler: &self.scheduler,
            sampler: &mut self.sampler,
            row: &mut self.row,
            now,
            outputs: Vec::with_capacity(plan.slices.len()),
            recording: self.recording.as_mut(),
        };
        let device_targets = self.device_samples.then_some(&targets[..]);
        let prompt_tokens = reading.read(
            &plan,
            device_targets,
            &output,
            self.shared.model().vocab,
            &mut self.live,
            &mut self.cancelled,
        );
        let outputs = reading.outputs;
        let began = self.finished.map_or(submitted, |last| last.max(submitted));
        self.finished = Some(now);
        self.shared.recorder().step(&StepStats {
            prompt_tokens,
            generation_tokens: outputs.len(),
            plan: submitted - planning,
            forward: now - began,
            shrink: (!plan.shrinks.is_empty()).then_some(shrink),
            sample: now.elapsed(),
        });
        self.scheduler.apply(Event::StepDone {
            step: plan.step,
            outputs,
            failed_shrinks,
        });
        self.scheduler.recycle(plan);
        self.spare_targets.push(targets);
        Ok(())
    }
}

fn check_lost(error: &BackendError) -> Result<(), Lost> {
    if matches!(error, BackendError::Device { lost: true, .. }) {
        tracing::error!(%error, "the device is lost; every running request ends");
        return Err(Lost);
    }
    Ok(())
}

/// Adds the samples of `plan` to a filled step. Its unknown tokens become pending samples of the
/// step before.
fn fill_samples(
    input: &mut StepInput,
    plan: &StepPlan,
    live: &mut FxHashMap<RequestId, ActiveRequest>,
    targets: &mut Vec<(RequestId, u32)>,
) {
    for slice in &plan.slices {
        let row = slice.tokens.end - 1;
        let last = &mut input.tokens[row as usize];
        let last_unknown = *last == SAMPLED_LATER;
        let live = live
            .get_mut(&slice.request)
            .expect("the scheduler plans only for active requests");
        if last_unknown {
            *last = pending_sample(live.last_sample(slice.choice));
        }
        let mut first = None;
        for choice in choices(slice) {
            let index = input.samples.len() as u32;
            let request = match &first {
                None => live.sample_request(choice, row, index, last_unknown, &mut input.edits),
                Some(first) => live.sample_request_beside(choice, index, first),
            };
            first.get_or_insert(request);
            input.samples.push(request);
            targets.push((slice.request, choice));
        }
    }
}

/// The choices that a slice samples for.
fn choices(slice: &Slice) -> std::ops::Range<u32> {
    match slice.logits.choices() {
        1 => slice.choice..slice.choice + 1,
        count => 0..count,
    }
}

/// Rows of logits that come back for a slice.
fn rows_of(slice: &Slice, device_samples: bool) -> usize {
    match slice.logits {
        Logits::None => 0,
        Logits::Last { .. } => usize::from(!device_samples),
        Logits::All { .. } => slice.tokens.len(),
    }
}

/// Parts of the engine thread that read a step's output, lent one by one.
struct Reading<'a> {
    scheduler: &'a Scheduler,
    sampler: &'a mut Sampler,
    row: &'a mut Vec<f32>,
    now: Instant,
    outputs: Vec<ChoiceOutput>,
    recording: Option<&'a mut Recording>,
}

impl Reading<'_> {
    /// A choice got its next token.
    fn push(&mut self, request: RequestId, choice: u32, advanced: Advanced) {
        let Advanced {
            token,
            done,
            logprob,
        } = advanced;
        if let Some(recording) = &mut self.recording {
            recording.token(request, choice, token, logprob);
        }
        self.outputs.push(ChoiceOutput {
            request,
            choice,
            token,
            finish: done,
        });
    }

    /// Reads a whole step; requests that cannot go on are added to `ended`. Returns the tokens of
    /// prompts in it.
    fn read(
        &mut self,
        plan: &StepPlan,
        targets: Option<&[(RequestId, u32)]>,
        output: &StepOutput<'_>,
        vocab: usize,
        live: &mut FxHashMap<RequestId, ActiveRequest>,
        ended: &mut Vec<(RequestId, RequestError)>,
    ) -> usize {
        let mut rows = output.logits.chunks_exact(vocab);
        let mut sampled = targets.unwrap_or(&[]).iter().zip(output.samples);
        let scheduler = self.scheduler;
        let mut awaited = scheduler.awaited().peekable();
        let mut prompt_tokens = 0;
        for slice in &plan.slices {
            if slice.tokens.len() > 1 {
                prompt_tokens += slice.tokens.len();
            }
            let count = rows_of(slice, targets.is_some());
            let rows: Vec<&[f32]> = rows.by_ref().take(count).collect();
            let count = slice.logits.choices() as usize;
            let samples: Vec<_> = sampled.by_ref().take(count).collect();
            // Samples for choices that have already finished, or behind a step of theirs that
            // failed, are discarded.
            let samples = samples
                .into_iter()
                .filter(|(target, _)| awaited.next_if(|next| next == *target).is_some());
            let samples: Vec<(u32, &SampledToken)> =
                samples.map(|(t, sample)| (t.1, sample)).collect();
            let Some(live) = live.get_mut(&slice.request) else {
                continue;
            };
            if live.ending.is_some() {
                continue;
            }
            let read = self.score_prompt(live, slice, &rows).and_then(|()| {
                if targets.is_some() {
                    self.take(live, &samples, output.top)
                } else {
                    self.sample(live, slice, &rows)
                }
            });
            if let Err(why) = read {
                ended.push((slice.request, why));
            }
        }
        prompt_tokens
    }

    /// Scores the prompt where that was asked for.
    fn score_prompt(
        &mut self,
        live: &mut ActiveRequest,
        slice: &Slice,
        rows: &[&[f32]],
    ) -> Result<(), RequestError> {
        let (Logits::All { .. }, Some(top)) = (slice.logits, live.request.params.prompt_logprobs)
        else {
            return Ok(());
        };
        // A step that was planned behind one that failed comes again.
        if live.prompt_scores() != slice.position as usize {
            return Ok(());
        }
        for (position, logits) in (slice.position as usize..).zip(rows) {
            // The logits of a position score the token after it.
            if let Some(&token) = live.request.prompt.get(position + 1) {
                let found = self
                    .sampler
                    .token_logprobs(logits, token, top)
                    .map_err(|e| RequestError::Internal(e.to_string()))?;
                live.score_prompt(TokenLogprobs {
                    token,
                    logprob: found.logprob,
                    top: found.top,
                })?;
            }
        }
        Ok(())
    }

    /// Samples what the slice is due.
    fn sample(
        &mut self,
        live: &mut ActiveRequest,
        slice: &Slice,
        rows: &[&[f32]],
    ) -> Result<(), RequestError> {
        let (Some(logits), true) = (rows.last(), slice.logits.choices() > 0) else {
            return Ok(());
        };
        live.start()?;
        self.row.clear();
        self.row.extend_from_slice(logits);
        for choice in choices(slice) {
            if live.choice_finished(choice) {
                continue;
            }
            let bits = self
                .scheduler
                .bits(live.request.id, choice)
                .unwrap_or_default();
            let advanced = live.sample(choice, self.row, self.sampler, self.now, bits.into())?;
            self.push(live.request.id, choice, advanced);
        }
        Ok(())
    }

    /// Takes what the device sampled for the slice.
    fn take(
        &mut self,
        live: &mut ActiveRequest,
        samples: &[(u32, &SampledToken)],
        top: &[(u32, f32)],
    ) -> Result<(), RequestError> {
        for &(choice, sample) in samples {
            live.start()?;
            let wants_report = live.request.params.logprobs.is_some();
            let report = wants_report.then(|| Report {
                logprob: sample.logprob,
                top: top[sample.first_top as usize..][..sample.top as usize].to_vec(),
            });
            let sampled = sample.token.map(|token| Sampled {
                token,
                logprobs: report,
            });
            let bits = self
                .scheduler
                .bits(live.request.id, choice)
                .unwrap_or_default();
            let sampled = sampled.map_err(Into::into);
            let advanced = live.take(choice, sampled, self.now, bits.into())?;
            self.push(live.request.id, choice, advanced);
        }
        Ok(())
    }
}
