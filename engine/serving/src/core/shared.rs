//! What the async side and the engine thread share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ebb_models::model::GenerationDefaults;
use ebb_models::tokenizer::{ChatTemplate, Tokenizer};
use ebb_scheduler::{QueueCapacity, RequestId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use super::admission_gate::AdmissionGate;
use super::pool_watch::{PoolLook, PoolWatch};
use super::pulse::{Clock, Pulse};
use super::{EngineState, Field, ModelInfo, RequestError};
use crate::client_memory::ClientMemory;
use crate::kv_state::KvFacts;
use crate::metrics::{Outcome, Recorder};
use crate::sampling::SamplingOptions;

/// Fixed facts about the served model and the limits of this engine.
pub(crate) struct Served {
    pub(crate) info: ModelInfo,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    /// Sampling parameters that the model's author recommends.
    pub(crate) generation: GenerationDefaults,
    /// Requests that may be live (waiting and running) at once.
    pub(crate) max_live: usize,
    /// How the KV cache shrinks.
    pub(crate) kv: KvFacts,
    /// What clients may make the engine hold.
    pub(crate) client_memory: ClientMemory,
    /// Without a step for so long, while requests wait, the engine counts as hung.
    pub(crate) hang_timeout: Option<std::time::Duration>,
    /// By which that is measured.
    pub(crate) clock: Clock,
}

/// What both sides see.
pub(super) struct Shared {
    pub(super) served: Served,
    pub(super) recorder: Recorder,
    /// Bytes of text that a token may stand for; `None` without a bound.
    pub(super) text_bytes_per_token: Option<usize>,
    pub(super) pulse: Pulse,
    pub(super) next_id: AtomicU64,
    /// Requests that take a place among [`Served::max_live`].
    places: AtomicUsize,
    /// Requests of which something is left: their streams may still be open.
    pub(super) live: AtomicUsize,
    pub(super) gate: AdmissionGate,
    /// Names of live requests, for `Abort` and to keep them unique.
    pub(super) names: Mutex<FxHashMap<String, RequestId>>,
    pub(super) cancelled: Mutex<Vec<(RequestId, RequestError)>>,
    state: Mutex<EngineState>,
    pub(super) pool_watch: PoolWatch,
    pub(super) accepting: AtomicBool,
    dead: AtomicBool,
    /// Signalled when the number of live requests falls to zero and when the engine dies.
    pub(super) idle: Notify,
}

impl Shared {
    pub(super) fn new(
        served: Served,
        recorder: Recorder,
        look: PoolLook,
        room: QueueCapacity,
    ) -> Self {
        Self {
            text_bytes_per_token: served.tokenizer.text_bytes_per_token(),
            pulse: Pulse::new(served.clock.clone()),
            served,
            recorder,
            next_id: AtomicU64::new(1),
            places: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            gate: AdmissionGate::new(room),
            names: Mutex::default(),
            cancelled: Mutex::default(),
            state: Mutex::new(look.state.clone()),
            pool_watch: PoolWatch::new(look),
            accepting: AtomicBool::new(true),
            dead: AtomicBool::new(false),
            idle: Notify::new(),
        }
    }

    pub(super) fn check_open(&self) -> Result<(), RequestError> {
        if !self.alive() {
            return Err(RequestError::Internal("the engine stopped".into()));
        }
        if !self.accepting.load(Ordering::Acquire) {
            return Err(RequestError::ShuttingDown);
        }
        Ok(())
    }

    /// What applies where a request says nothing.
    pub(super) fn default_sampling(&self) -> SamplingOptions {
        let given = &self.served.generation;
        let default = SamplingOptions::default();
        SamplingOptions {
            temperature: given.temperature.unwrap_or(default.temperature),
            top_k: given.top_k.unwrap_or(default.top_k),
            top_p: given.top_p.unwrap_or(default.top_p),
            min_p: given.min_p.unwrap_or(default.min_p),
            repetition_penalty: given
                .repetition_penalty
                .unwrap_or(default.repetition_penalty),
            ..default
        }
    }

    /// Takes one of the live places and the name, or says why not.
    pub(super) fn take_place(
        self: &Arc<Self>,
        id: RequestId,
        name: String,
    ) -> Result<Place, RequestError> {
        let limit = self.served.max_live;
        let taken = self
            .places
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < limit).then_some(n + 1)
            });
        if taken.is_err() {
            return Err(self.queue_full());
        }
        if self.live.fetch_add(1, Ordering::AcqRel) == 0 {
            self.pulse.beat();
        }
        let mut place = Place {
            shared: self.clone(),
            name: String::new(),
            kept: false,
        };
        let name = if name.is_empty() {
            format!("ebb-{}", id.0)
        } else {
            name
        };
        let mut names = self.names.lock();
        if names.contains_key(&name) {
            drop(names);
            return Err(RequestError::invalid(
                Field::RequestId,
                format!("another live request is already called {name:?}"),
            ));
        }
        names.insert(name.clone(), id);
        place.name = name;
        Ok(place)
    }

    pub(super) fn queue_full(&self) -> RequestError {
        RequestError::QueueFull {
            limit: self.served.max_live,
        }
    }

    /// Another request may have this one's place and name from now on: called once for every
    /// request that took a place.
    pub(super) fn free_place(&self, name: &str) {
        self.places.fetch_sub(1, Ordering::AcqRel);
        if !name.is_empty() {
            self.names.lock().remove(name);
        }
    }

    /// Called once for every request that took a place, when nothing of it is left.
    pub(super) fn leave(&self) {
        if self.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }

    pub(super) fn take_cancelled(&self, into: &mut Vec<(RequestId, RequestError)>) {
        into.append(&mut self.cancelled.lock());
    }

    pub(super) fn model(&self) -> &ModelInfo {
        &self.served.info
    }

    pub(super) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.served.tokenizer
    }

    pub(super) fn state(&self) -> EngineState {
        let mut state = self.state.lock().clone();
        state.accepting = self.accepting.load(Ordering::Acquire) && self.alive();
        state.step_age = self.step_age();
        state
    }

    pub(super) fn publish(&self, state: EngineState) {
        *self.state.lock() = state;
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(super) fn kv_facts(&self) -> &KvFacts {
        &self.served.kv
    }

    pub(super) fn alive(&self) -> bool {
        !self.dead.load(Ordering::Acquire)
    }

    /// Time since the last step while requests wait for one; 0 while none does.
    pub(super) fn step_age(&self) -> std::time::Duration {
        match self.live.load(Ordering::Acquire) {
            0 => std::time::Duration::ZERO,
            _ => self.pulse.age(),
        }
    }

    /// Whether requests have waited for a step for longer than the hang timeout.
    pub(super) fn is_hung(&self) -> bool {
        let timeout = self.served.hang_timeout;
        timeout.is_some_and(|timeout| self.step_age() > timeout)
    }

    pub(super) async fn died(&self) {
        loop {
            let notified = self.idle.notified();
            tokio::pin!(notified);
            // Hears of a death between the look and the wait, too.
            notified.as_mut().enable();
            if !self.alive() {
                return;
            }
            notified.await;
        }
    }

    pub(super) fn die(&self) {
        self.dead.store(true, Ordering::Release);
        self.idle.notify_waiters();
    }
}

/// A live place taken but not yet handed to the engine thread; given back unless kept.
pub(super) struct Place {
    shared: Arc<Shared>,
    pub(super) name: String,
    kept: bool,
}

impl Place {
    /// The engine thread gives it back from now on.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.kept {
            self.shared.free_place(&self.name);
            self.shared.leave();
        }
    }
}

/// How the metrics name the end of a request.
pub(super) fn outcome(error: Option<&RequestError>) -> Outcome {
    match error {
        None => Outcome::Completed,
        Some(RequestError::Invalid { .. }) => Outcome::Invalid,
        Some(RequestError::QueueFull { .. } | RequestError::TextQueueFull { .. }) => {
            Outcome::QueueFull
        }
        Some(RequestError::SlowReader { .. }) => Outcome::SlowReader,
        Some(RequestError::ClientMemory(_)) => Outcome::ClientMemory,
        Some(RequestError::DeadlineExceeded) => Outcome::DeadlineExceeded,
        Some(RequestError::Aborted) => Outcome::Aborted,
        Some(RequestError::ShuttingDown) => Outcome::ShuttingDown,
        Some(RequestError::Internal(_)) => Outcome::Error,
    }
}
