//! The engine thread: commands in, one step planned and submitted, the oldest one in flight read,
//! events out, again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ebb_kernels::backend::{Backend, StepInput};
use ebb_scheduler::{Event, FinishReason, Millis, Notice, RejectReason, RequestId, Scheduler};
use rustc_hash::FxHashMap;

use super::active_request::ActiveRequest;
use super::admission_gate::Count;
use super::engine::{Command, Submission};
use super::in_flight_steps::{InFlight, Lost};
use super::pool_watch::PoolLook;
use super::recording::Recording;
use super::shared::{Shared, outcome};
use super::{EngineState, Field, KvBits, RequestError};
use crate::kv_pool::KvPool;
use crate::sampling::{Param, Sampler};
use crate::trajectory::TrajectoryLog;

/// How long the thread sleeps at most while requests wait for nothing but time (deadlines).
const IDLE: Duration = Duration::from_millis(20);

pub(super) struct EngineThread {
    pub(super) shared: Arc<Shared>,
    commands: Receiver<Command>,
    pub(super) scheduler: Scheduler,
    pub(super) backend: Box<dyn Backend>,
    /// Whether the backend samples the tokens itself.
    pub(super) device_samples: bool,
    pub(super) sampler: Sampler,
    /// One row of logits, to be edited while a token is chosen from it.
    pub(super) row: Vec<f32>,
    pub(super) live: FxHashMap<RequestId, ActiveRequest>,
    /// What came since the start.
    received: Count,
    epoch: Instant,
    pub(super) steps: u64,
    pub(super) input: StepInput,
    /// Oldest first.
    pub(super) in_flight: VecDeque<InFlight>,
    /// When the last step came back.
    pub(super) finished: Option<Instant>,
    pub(super) spare_targets: Vec<Vec<(RequestId, u32)>>,
    notices: Vec<Notice>,
    pub(super) recording: Option<Recording>,
    pub(super) cancelled: Vec<(RequestId, RequestError)>,
}

impl EngineThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        scheduler: Scheduler,
        backend: Box<dyn Backend>,
        log: Option<TrajectoryLog>,
    ) -> Self {
        let recording = log.map(|log| Recording::new(log, shared.recorder().clone()));
        Self {
            shared,
            commands,
            scheduler,
            sampler: Sampler::new(),
            row: Vec::new(),
            device_samples: backend.samples(),
            backend,
            live: FxHashMap::default(),
            received: Count::default(),
            epoch: Instant::now(),
            steps: 0,
            input: StepInput::default(),
            in_flight: VecDeque::new(),
            finished: None,
            spare_targets: Vec::new(),
            notices: Vec::new(),
            recording,
            cancelled: Vec::new(),
        }
    }

    /// Runs until every handle is gone. A panic or a lost device marks the engine dead; the
    /// streams' own drop tells the clients.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || self.serve()));
        shared.die();
        if result.is_err() {
            tracing::error!("the engine thread panicked; every running request was ended");
        }
    }

    fn serve(&mut self) -> Result<(), Lost> {
        let depth = self.scheduler.config().max_in_flight;
        let mut idle = true;
        loop {
            if !self.receive(idle) {
                return Ok(());
            }
            self.apply_cancellations();
            self.scheduler.apply(Event::Tick(self.now()));
            self.handle_notices();
            let started = Instant::now();
            let planned = self.scheduler.plan();
            self.handle_notices();
            let nothing_new = planned.is_none();
            if let Some(plan) = planned {
                self.submit_step(plan, started)?;
                self.handle_notices();
            }
            let was_idle = idle;
            idle = nothing_new && self.in_flight.is_empty();
            if was_idle && !idle {
                // The first step may take long.
                self.publish();
            }
            // The device has the next step to work on while this one's tokens are handed out, where
            // it can.
            if nothing_new || self.in_flight.len() >= depth {
                let steps_return = !self.in_flight.is_empty();
                self.finish_step()?;
                self.handle_notices();
                if steps_return || self.scheduler.is_idle() {
                    self.shared.pulse.beat();
                }
            }
            self.publish();
        }
    }

    fn now(&self) -> Millis {
        Millis(self.epoch.elapsed().as_millis() as u64)
    }

    /// Takes every command there is; when `idle`, waits for one. False once nobody can send any
    /// more.
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
        self.received.add(submission.request.params.n);
        let arrival = submission.request.arrival(self.epoch);
        let live = ActiveRequest::new(
            submission,
            self.shared.tokenizer(),
            &self.shared.model().eos_token_ids,
        );
        self.live.insert(arrival.id, live);
        self.scheduler.apply(Event::Arrive(arrival));
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

    /// Acts on what the scheduler decided; first of all the gate is told, so that a client that has
    /// seen an end finds the place free.
    fn handle_notices(&mut self) {
        self.shared
            .gate
            .looked(self.received, self.scheduler.queue_capacity());
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
                    if let Some(recording) = &mut self.recording {
                        recording.preempted(request, choice);
                    }
                }
                Notice::Rejected { request, reason } => {
                    let error = match reason {
                        RejectReason::QueueFull { .. } => self.shared.queue_full(),
                        RejectReason::Choices { .. } => {
                            RequestError::invalid(Field::Sampling(Param::N), reason)
                        }
                        RejectReason::NeverFitsAtBits { .. } => {
                            RequestError::invalid(Field::MinKvBits, reason)
                        }
                        _ => RequestError::invalid(Field::Prompt, reason),
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
        if let Some(recording) = &mut self.recording {
            recording.finished(live, choice, reason);
        }
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
        if let Some(recording) = &mut self.recording {
            recording.left(request);
        }
        let Some(live) = self.live.remove(&request) else {
            return;
        };
        live.meter.end(Instant::now(), outcome(error.as_ref()));
        // A client that has seen the end may have the place and the name again; a drain that sees
        // nobody left may end the process.
        self.shared.free_place(&live.request.name);
        live.sender.close(error);
        self.shared.leave();
    }

    fn publish(&mut self) {
        let stats = self.scheduler.stats();
        let kv = self.shared.kv_facts().state(&self.scheduler, &stats);
        let state = EngineState::of(&stats, self.steps, kv);
        if self.shared.pool_watch.take_wanted() {
            self.shared.pool_watch.show(PoolLook {
                at: Instant::now(),
                state: state.clone(),
                pool: KvPool::of(&self.scheduler),
            });
        }
        self.shared.publish(state);
    }
}
