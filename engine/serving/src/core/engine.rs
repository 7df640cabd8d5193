//! What the async side and the engine thread share, and how a request gets from one to the other.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use ebb_models::model::GenerationDefaults;
use ebb_models::tokenizer::{ChatTemplate, Tokenizer};
use ebb_scheduler::{RequestId, Room};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use super::door::Door;
use super::stream::{StreamSender, stream};
use super::{EngineState, GenerateRequest, GenerateStream, ModelInfo, Prompt, RequestError};
use crate::kv_state::KvFacts;
use crate::metrics::{Outcome, Recorder, RequestMeter};
use crate::sampling::{SamplingOptions, SamplingParams};

/// What the engine thread is told. Cancellations travel beside it ([`Inner::take_cancelled`]) so
/// that a full channel cannot hold them up.
pub(super) enum Command {
    Submit(Box<Submission>),
    /// Something beside the channel changed: look.
    Wake,
}

/// A validated, tokenised request on its way to the engine thread.
pub(super) struct Submission {
    pub(super) id: RequestId,
    pub(super) name: String,
    pub(super) prompt: Arc<[u32]>,
    pub(super) params: SamplingParams,
    pub(super) max_tokens: u32,
    pub(super) priority: i32,
    pub(super) deadline: Option<Instant>,
    pub(super) min_kv_bits: u8,
    pub(super) meter: RequestMeter,
    pub(super) sender: StreamSender,
}

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
}

/// What both sides see.
pub(super) struct Shared {
    served: Served,
    recorder: Recorder,
    next_id: AtomicU64,
    /// Requests that take a place among [`Served::max_live`].
    places: AtomicUsize,
    /// Requests of which something is left: their streams may still be open.
    live: AtomicUsize,
    pub(super) door: Door,
    /// Names of live requests, for `Abort` and to keep them unique.
    names: Mutex<FxHashMap<String, RequestId>>,
    cancelled: Mutex<Vec<(RequestId, RequestError)>>,
    state: Mutex<EngineState>,
    accepting: AtomicBool,
    dead: AtomicBool,
    /// Signalled when the number of live requests falls to zero and when the engine dies.
    idle: Notify,
}

/// How long closing waits for the engine thread to let go of its backend.
const LETTING_GO: Duration = Duration::from_secs(10);

/// The async side: what both see, and the way to the engine thread, which ends when the last of
/// these is gone, or one is closed.
pub(super) struct Inner {
    shared: Arc<Shared>,
    /// Until this is closed.
    commands: RwLock<Option<SyncSender<Command>>>,
    /// Closed when the engine thread has dropped its backend.
    ended: Mutex<Receiver<Infallible>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Deref for Inner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Shared {
    pub(super) fn new(served: Served, recorder: Recorder, state: EngineState, room: Room) -> Self {
        Self {
            served,
            recorder,
            next_id: AtomicU64::new(1),
            places: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            door: Door::new(room),
            names: Mutex::default(),
            cancelled: Mutex::default(),
            state: Mutex::new(state),
            accepting: AtomicBool::new(true),
            dead: AtomicBool::new(false),
            idle: Notify::new(),
        }
    }

    fn check_open(&self) -> Result<(), RequestError> {
        if !self.alive() {
            return Err(RequestError::Internal("the engine stopped".into()));
        }
        if !self.accepting.load(Ordering::Acquire) {
            return Err(RequestError::ShuttingDown);
        }
        Ok(())
    }

    fn tokenize_now(&self, prompt: Prompt, add_special: bool) -> Result<Arc<[u32]>, RequestError> {
        let ids = match prompt {
            Prompt::Tokens(ids) => {
                let vocab = self.served.info.vocab;
                if let Some(bad) = ids.iter().find(|&&id| id as usize >= vocab) {
                    let message =
                        format!("{bad} is not a token: the vocabulary has {vocab} tokens");
                    return Err(RequestError::invalid("token_ids", message));
                }
                ids
            }
            Prompt::Text(text) => self.encode(&text, "text", add_special)?,
            Prompt::Chat(messages) => {
                let template = self.served.template.as_ref().ok_or_else(|| {
                    RequestError::invalid(
                        "chat",
                        "this model has no chat template; send text or token_ids instead",
                    )
                })?;
                let text = template
                    .render(&messages, true, std::time::SystemTime::now())
                    .map_err(|e| RequestError::invalid("chat", e))?;
                // The template writes BOS itself where the model wants one.
                self.encode(&text, "chat", false)?
            }
        };
        Ok(ids.into())
    }

    fn encode(&self, text: &str, field: &str, add_special: bool) -> Result<Vec<u32>, RequestError> {
        // No token stands for this many bytes: such texts are refused before they cost time.
        let context = self.served.info.max_context;
        if text.len() > context.saturating_mul(64) {
            let message = format!(
                "{} bytes of text cannot fit a context of {context} tokens",
                text.len()
            );
            return Err(RequestError::invalid(field, message));
        }
        self.served
            .tokenizer
            .encode(text, add_special, true)
            .map_err(|e| RequestError::invalid(field, e))
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

    /// The number of tokens to generate at most.
    fn check_lengths(&self, prompt: usize, max_tokens: Option<u32>) -> Result<u32, RequestError> {
        if prompt == 0 {
            return Err(RequestError::invalid(
                "prompt",
                "it is empty; send at least one token",
            ));
        }
        let context = self.served.info.max_context;
        if prompt >= context {
            return Err(RequestError::invalid(
                "prompt",
                format!(
                    "it has {prompt} tokens; the context holds {context}, prompt and answer \
                     together"
                ),
            ));
        }
        let room = (context - prompt) as u32;
        match max_tokens {
            Some(wanted) if wanted > room => Err(RequestError::invalid(
                "sampling.max_tokens",
                format!(
                    "{wanted} is more than fits after a prompt of {prompt} tokens in a context of \
                     {context}; at most {room}"
                ),
            )),
            Some(wanted) => Ok(wanted),
            None => Ok(room),
        }
    }

    /// Takes one of the live places and the name, or says why not.
    fn take_place(self: &Arc<Self>, id: RequestId, name: String) -> Result<Place, RequestError> {
        let limit = self.served.max_live;
        let taken = self
            .places
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < limit).then_some(n + 1)
            });
        if taken.is_err() {
            return Err(self.queue_full());
        }
        self.live.fetch_add(1, Ordering::AcqRel);
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
                "request_id",
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

impl Inner {
    pub(super) fn new(
        shared: Arc<Shared>,
        commands: SyncSender<Command>,
        ended: Receiver<Infallible>,
    ) -> Self {
        Self {
            shared,
            commands: RwLock::new(Some(commands)),
            ended: Mutex::new(ended),
        }
    }

    /// Ends the engine thread and waits for it: a process that ends while another thread frees a
    /// device's memory may crash in the driver.
    pub(super) fn close(&self) {
        *self.commands.write() = None;
        if let Err(RecvTimeoutError::Timeout) = self.ended.lock().recv_timeout(LETTING_GO) {
            tracing::warn!("the backend is still busy; nobody waits for it any more");
        }
    }

    fn send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        match &*self.commands.read() {
            Some(commands) => commands.try_send(command),
            None => Err(TrySendError::Disconnected(command)),
        }
    }

    pub(super) async fn submit(
        self: &Arc<Self>,
        request: GenerateRequest,
    ) -> Result<GenerateStream, RequestError> {
        let arrived = Instant::now();
        let asked = request
            .params
            .max_tokens
            .unwrap_or(self.served.info.max_context as u32);
        let meter = self.recorder.request(arrived, request.params.n, asked);
        match self.prepare(request, arrived).await {
            Ok(prepared) => self.hand_over(prepared, meter),
            Err(error) => {
                meter.end(Instant::now(), outcome(Some(&error)));
                Err(error)
            }
        }
    }

    /// Everything that can refuse a request before the engine thread hears of it.
    async fn prepare(
        &self,
        request: GenerateRequest,
        arrived: Instant,
    ) -> Result<Prepared, RequestError> {
        self.check_open()?;
        let GenerateRequest {
            request_id,
            prompt,
            params,
            priority,
            timeout,
            min_kv_bits,
        } = request;
        let prompt = self.tokenize(prompt, true).await?;
        let max_tokens = self.check_lengths(prompt.len(), params.max_tokens)?;
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let place = self.shared.take_place(id, request_id)?;
        Ok(Prepared {
            id,
            place,
            prompt,
            params,
            max_tokens,
            priority,
            deadline: timeout.map(|t| arrived + t),
            min_kv_bits,
        })
    }

    fn hand_over(
        self: &Arc<Self>,
        prepared: Prepared,
        meter: RequestMeter,
    ) -> Result<GenerateStream, RequestError> {
        let Prepared {
            id,
            place,
            prompt,
            params,
            max_tokens,
            priority,
            deadline,
            min_kv_bits,
        } = prepared;
        let weak = Arc::downgrade(self);
        let (sender, reader) = stream(move || {
            if let Some(inner) = weak.upgrade() {
                inner.cancel(id, RequestError::Aborted);
            }
        });
        let (name, n) = (place.name.clone(), params.n);
        let submission = Submission {
            id,
            name,
            prompt,
            params,
            max_tokens,
            priority,
            deadline,
            min_kv_bits,
            meter,
            sender,
        };
        let mut command = Some(Command::Submit(Box::new(submission)));
        // The command comes back where it is not sent.
        let sent = self.door.enter(n, || match command.take() {
            Some(it) => self.send(it),
            None => Ok(()),
        });
        let full = self.queue_full();
        let (error, unsent) = match sent {
            Some(Ok(())) => {
                place.keep();
                return Ok(reader);
            }
            None => (full, command),
            Some(Err(TrySendError::Full(it))) => (full, Some(it)),
            Some(Err(TrySendError::Disconnected(it))) => (
                RequestError::Internal("the engine stopped".into()),
                Some(it),
            ),
        };
        if let Some(Command::Submit(submission)) = unsent {
            submission.meter.end(Instant::now(), outcome(Some(&error)));
        }
        Err(error)
    }

    /// Token ids of a prompt as `submit` uses them. `add_special` concerns plain text alone.
    pub(super) async fn tokenize(
        &self,
        prompt: Prompt,
        add_special: bool,
    ) -> Result<Arc<[u32]>, RequestError> {
        // Long texts take milliseconds: too long for the thread that serves other clients.
        const INLINE_BYTES: usize = 16 * 1024;
        let inline = matches!(&prompt, Prompt::Text(text) if text.len() <= INLINE_BYTES)
            || matches!(&prompt, Prompt::Tokens(_));
        if inline {
            return self.tokenize_now(prompt, add_special);
        }
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || shared.tokenize_now(prompt, add_special))
            .await
            .map_err(|e| RequestError::Internal(format!("tokenising failed: {e}")))?
    }

    pub(super) fn cancel(&self, id: RequestId, why: RequestError) {
        self.cancelled.lock().push((id, why));
        // A full channel means the thread is awake anyway.
        let _ = self.send(Command::Wake);
    }

    pub(super) fn abort(&self, name: &str) -> bool {
        let id = self.names.lock().get(name).copied();
        if let Some(id) = id {
            self.cancel(id, RequestError::Aborted);
        }
        id.is_some()
    }

    pub(super) async fn drain(&self, grace: Duration) {
        self.accepting.store(false, Ordering::Release);
        let deadline = tokio::time::Instant::now() + grace;
        loop {
            let notified = self.idle.notified();
            if self.live.load(Ordering::Acquire) == 0 || !self.alive() {
                return;
            }
            if tokio::time::timeout_at(deadline, notified).await.is_err() {
                break;
            }
        }
        let rest: Vec<RequestId> = self.names.lock().values().copied().collect();
        for id in rest {
            self.cancel(id, RequestError::ShuttingDown);
        }
        // One step at most: cancellations take effect between steps.
        let _ = tokio::time::timeout(Duration::from_secs(2), async {
            while self.live.load(Ordering::Acquire) > 0 && self.alive() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// A live place taken but not yet handed to the engine thread; given back unless kept.
struct Place {
    shared: Arc<Shared>,
    name: String,
    kept: bool,
}

impl Place {
    fn keep(mut self) {
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

/// A request that passed every check, holding its place.
struct Prepared {
    id: RequestId,
    place: Place,
    prompt: Arc<[u32]>,
    params: SamplingParams,
    max_tokens: u32,
    priority: i32,
    deadline: Option<Instant>,
    min_kv_bits: u8,
}

/// How the metrics name the end of a request.
pub(super) fn outcome(error: Option<&RequestError>) -> Outcome {
    match error {
        None => Outcome::Completed,
        Some(RequestError::Invalid { .. }) => Outcome::Invalid,
        Some(RequestError::QueueFull { .. }) => Outcome::QueueFull,
        Some(RequestError::SlowReader { .. }) => Outcome::SlowReader,
        Some(RequestError::DeadlineExceeded) => Outcome::DeadlineExceeded,
        Some(RequestError::Aborted) => Outcome::Aborted,
        Some(RequestError::ShuttingDown) => Outcome::ShuttingDown,
        Some(RequestError::Internal(_)) => Outcome::Error,
    }
}
