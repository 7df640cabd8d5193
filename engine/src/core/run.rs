//! The engine thread: commands in, one step, events out, again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ebb_kernels::backend::{Backend, StepInput};
use ebb_scheduler::{
    ChoiceOutput, Event, FinishReason, Logits, Millis, Notice, RejectReason, Request, RequestId,
    Scheduler, Slice, StepPlan,
};
use rustc_hash::FxHashMap;

use super::engine::{Command, Shared, Submission, outcome};
use super::live::Live;
use super::step;
use super::{EngineState, KvBits, RequestError, TokenLogprobs};
use crate::metrics::StepStats;
use crate::sampling::Sampler;

/// How long the thread sleeps at most while requests wait for nothing but time (deadlines).
const IDLE: Duration = Duration::from_millis(20);

pub(super) struct EngineThread {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    scheduler: Scheduler,
    backend: Box<dyn Backend>,
    sampler: Sampler,
    /// One row of logits, to be edited while a token is chosen from it.
    row: Vec<f32>,
    live: FxHashMap<RequestId, Live>,
    epoch: Instant,
    steps: u64,
    input: StepInput,
    notices: Vec<Notice>,
    cancelled: Vec<(RequestId, RequestError)>,
}

impl EngineThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        scheduler: Scheduler,
        backend: Box<dyn Backend>,
    ) -> Self {
        Self {
            shared,
            commands,
            scheduler,
            sampler: Sampler::new(),
            row: Vec::new(),
            backend,
            live: FxHashMap::default(),
            epoch: Instant::now(),
            steps: 0,
            input: StepInput::default(),
            notices: Vec::new(),
            cancelled: Vec::new(),
        }
    }

    /// Runs until every handle is gone. A panic or a fatal device error marks the engine dead; the streams' own drop
    /// tells the clients.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || self.serve()));
        shared.die();
        if result.is_err() {
            tracing::error!("the engine thread panicked; every running request was ended");
        }
    }

    fn serve(&mut self) {
        let mut idle = true;
        loop {
            if !self.receive(idle) {
                return;
            }
            self.apply_cancellations();
            self.scheduler.apply(Event::Tick(self.now()));
            self.handle_notices();
            let started = Instant::now();
            let planned = self.scheduler.plan();
            self.handle_notices();
            idle = planned.is_none();
            if let Some(plan) = planned {
                self.step(plan, started);
                self.handle_notices();
            }
            self.publish();
        }
    }

    fn now(&self) -> Millis {
        Millis(self.epoch.elapsed().as_millis() as u64)
    }

    /// Takes every command there is; when `idle`, waits for one. False once nobody can send any more.
    fn receive(&mut self, idle: bool) -> bool {
        if idle {
            let command = if self.live.is_empty() {
                self.commands
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.commands.recv_timeout(IDLE)
            };
            match command {
                Ok(command) => self.command(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.command(command);
        }
        true
    }

    fn command(&mut self, command: Command) {
        if let Command::Submit(submission) = command {
            self.submit(*submission);
        }
    }

    fn submit(&mut self, submission: Submission) {
        let deadline = submission
            .deadline
            .map(|d| Millis(d.saturating_duration_since(self.epoch).as_millis() as u64));
        let request = Request {
            id: submission.id,
            prompt: submission.prompt.clone(),
            max_tokens: submission.max_tokens,
            n: submission.params.n,
            priority: submission.priority,
            deadline,
            prompt_logprobs: submission.params.prompt_logprobs.is_some(),
            min_kv_bits: submission.min_kv_bits,
        };
        let live = Live::new(
            submission,
            self.shared.tokenizer(),
            &self.shared.model().eos_token_ids,
        );
        self.live.insert(request.id, live);
        self.scheduler.apply(Event::Arrive(request));
    }

    fn apply_cancellations(&mut self) {
        let mut cancelled = std::mem::take(&mut self.cancelled);
        self.shared.take_cancelled(&mut cancelled);
        for (id, why) in cancelled.drain(..) {
            self.end(id, why);
        }
        self.cancelled = cancelled;
    }

    /// Ends a request from this side; the scheduler's notice closes its stream.
    fn end(&mut self, id: RequestId, why: RequestError) {
        if let Some(live) = self.live.get_mut(&id) {
            live.ending.get_or_insert(why);
            self.scheduler.apply(Event::Cancel(id));
        }
    }

    fn step(&mut self, plan: StepPlan, planning: Instant) {
        let submitted = Instant::now();
        step::fill(&mut self.input, &plan, self.scheduler.blocks());
        for slice in &plan.slices {
            if let Some(live) = self.live.get_mut(&slice.request) {
                live.meter
                    .scheduled(submitted, live.prompt.len(), live.cached_tokens);
            }
        }
        let (logits, failed, shrink) = match self.backend.step(&self.input) {
            Ok(output) => (output.logits, output.failed_shrinks, output.shrink_time),
            Err(error) => {
                tracing::error!(%error, rows = plan.tokens.len(), "a step failed; its sequences will be tried again");
                self.scheduler.apply(Event::StepFailed { step: plan.step });
                self.scheduler.recycle(plan);
                return;
            }
        };
        self.steps += 1;
        for failure in failed {
            tracing::warn!(%failure, "a block of the KV cache cannot be shrunk and keeps its width");
        }
        let failed = failed.iter().map(|f| plan.shrinks[f.shrink].block);
        let failed_shrinks = failed.collect();
        let now = Instant::now();
        let vocab = self.shared.model().vocab;
        let mut outputs = Vec::with_capacity(plan.slices.len());
        let mut rows = logits.chunks_exact(vocab);
        let mut prompt_tokens = 0;
        for slice in &plan.slices {
            if slice.tokens.len() > 1 {
                prompt_tokens += slice.tokens.len();
            }
            let rows: Vec<&[f32]> = rows.by_ref().take(rows_of(slice)).collect();
            let Some(live) = self
                .live
                .get_mut(&slice.request)
                .filter(|live| live.ending.is_none())
            else {
                continue;
            };
            let read = read_rows(
                live,
                slice,
                &rows,
                &self.scheduler,
                &mut self.sampler,
                &mut self.row,
                now,
                &mut outputs,
            );
            if let Err(why) = read {
                self.cancelled.push((slice.request, why));
            }
        }
        self.shared.recorder().step(&StepStats {
            prompt_tokens,
            generation_tokens: outputs.len(),
            plan: submitted - planning,
            forward: now - submitted,
            shrink: (!plan.shrinks.is_empty()).then_some(shrink),
            sample: now.elapsed(),
        });
        self.scheduler.apply(Event::StepDone {
            step: plan.step,
            outputs,
            failed_shrinks,
        });
        self.scheduler.recycle(plan);
    }

    fn handle_notices(&mut self) {
        let mut notices = std::mem::take(&mut self.notices);
        self.scheduler.drain_notices(&mut notices);
        for notice in notices.drain(..) {
            match notice {
                Notice::Admitted {
                    request,
                    cached_tokens,
                } => {
                    if let Some(live) = self.live.get_mut(&request) {
                        live.cached_tokens = cached_tokens as usize;
                    }
                }
                Notice::Preempted { request, choice } => {
                    tracing::debug!(
                        request = request.0,
                        choice,
                        "preempted: the KV memory is full"
                    );
                    if let Some(live) = self.live.get_mut(&request) {
                        live.meter.preempted();
                    }
                }
                Notice::Rejected { request, reason } => {
                    let error = match reason {
                        RejectReason::QueueFull { limit, .. } => RequestError::QueueFull { limit },
                        RejectReason::Choices { .. } => RequestError::invalid("n", reason),
                        _ => RequestError::invalid("prompt", reason),
                    };
                    self.leave(request, Some(error));
                }
                Notice::Finished {
                    request,
                    choice,
                    reason,
                    bits,
                } => self.finished(request, choice, reason, bits.into()),
            }
        }
        self.notices = notices;
    }

    /// The scheduler let go of a choice; with the last one the request leaves.
    fn finished(&mut self, request: RequestId, choice: u32, reason: FinishReason, kv_bits: KvBits) {
        let Some(live) = self.live.get_mut(&request) else {
            return;
        };
        let error = match reason {
            FinishReason::Stop | FinishReason::Length => None,
            FinishReason::DeadlineExceeded => Some(RequestError::DeadlineExceeded),
            // Cancelled by `end`, which left its reason.
            FinishReason::Cancelled => Some(RequestError::Aborted),
            FinishReason::Error => {
                Some(RequestError::Internal("its steps failed repeatedly".into()))
            }
        };
        let completed = error.is_none();
        if let Some(error) = error {
            live.ending.get_or_insert(error);
        }
        if live.released(choice, completed, kv_bits) {
            let error = live.ending.take();
            self.leave(request, error);
        }
    }

    fn leave(&mut self, request: RequestId, error: Option<RequestError>) {
        let Some(live) = self.live.remove(&request) else {
            return;
        };
        live.meter.end(Instant::now(), outcome(error.as_ref()));
        // A client that has seen the end may use the name again; a drain that sees nobody left may end the process.
        self.shared.free_name(&live.name);
        live.sender.close(error);
        self.shared.leave();
    }

    fn publish(&mut self) {
        let stats = self.scheduler.stats();
        let kv = self.shared.kv_facts().state(&self.scheduler, &stats);
        self.shared.publish(EngineState::of(&stats, self.steps, kv));
    }
}

/// Rows of logits that a slice asked for.
fn rows_of(slice: &Slice) -> usize {
    match slice.logits {
        Logits::None => 0,
        Logits::Last { .. } => 1,
        Logits::All { .. } => slice.tokens.len(),
    }
}

/// Scores the prompt where that was asked for, and samples what the slice is due.
///
/// # Errors
/// When the request cannot go on: its reader is gone or too slow, or its logits are unusable.
#[expect(
    clippy::too_many_arguments,
    reason = "parts of the engine thread, lent one by one"
)]
fn read_rows(
    live: &mut Live,
    slice: &Slice,
    rows: &[&[f32]],
    scheduler: &Scheduler,
    sampler: &mut Sampler,
    row: &mut Vec<f32>,
    now: Instant,
    outputs: &mut Vec<ChoiceOutput>,
) -> Result<(), RequestError> {
    if let (Logits::All { .. }, Some(top)) = (slice.logits, live.params.prompt_logprobs) {
        for (position, logits) in (slice.position as usize..).zip(rows) {
            // The logits of a position score the token after it.
            if let Some(&token) = live.prompt.get(position + 1) {
                let found = sampler
                    .token_logprobs(logits, token, top)
                    .map_err(|e| RequestError::Internal(e.to_string()))?;
                live.prompt_logprobs.push(TokenLogprobs {
                    token,
                    logprob: found.logprob,
                    top: found.top,
                });
            }
        }
    }
    let count = slice.logits.choices();
    let (Some(logits), true) = (rows.last(), count > 0) else {
        return Ok(());
    };
    live.start()?;
    let choices = if count == 1 {
        slice.choice..slice.choice + 1
    } else {
        0..count
    };
    row.clear();
    row.extend_from_slice(logits);
    for choice in choices {
        if live.choice_finished(choice) {
            continue;
        }
        let bits = scheduler.bits(live.id, choice).unwrap_or_default();
        let advanced = live.advance(choice, row, sampler, now, bits.into())?;
        outputs.push(ChoiceOutput {
            request: live.id,
            choice,
            token: advanced.token,
            finish: advanced.done,
        });
    }
    Ok(())
}
