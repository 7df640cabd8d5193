//! The async side's view of the engine: submit, abort, look, drain.

use std::sync::Arc;

use ebb_block_manager::PoolConfig;
use ebb_kernels::backend::Backend;
use ebb_models::tokenizer::{SpecialIds, Tokenizer};
use ebb_scheduler::{Config, Scheduler, SetupError};

use super::engine::{Command, Inner};
use super::pool_watch::PoolLook;
use super::run::EngineThread;
use super::shared::{Served, Shared};
use super::{GenerateStream, Prompt, Request, RequestError};
use crate::kv_pool::KvPool;
use crate::kv_state::KvState;
use crate::metrics::Recorder;
use crate::sampling::SamplingOptions;
use crate::trajectory::TrajectoryLog;

/// What is served.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Name that clients and metrics see.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Family and shape in one line, for people.
    pub description: String,
    /// What computes, for people.
    pub device: String,
    /// Tokens a sequence may hold, prompt and answer together.
    pub max_context: usize,
    /// Sequences that run at once.
    pub max_running: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Tokens that begin and end texts, and stand for what cannot be spelt.
    pub special: SpecialIds,
    /// Whether chat messages can be sent.
    pub has_chat_template: bool,
    /// Bytes of 16-bit KV that one token takes, all layers and both sides.
    pub kv_bytes_per_token: u64,
}

impl ModelInfo {
    /// Every name, the first one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .map(String::as_str)
    }

    /// Whether requests may call it that.
    pub fn has_name(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }
}

/// A consistent look at the engine, refreshed after every step.
#[derive(Debug, Clone, Default)]
pub struct EngineState {
    /// Sequences in the batch.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Bytes of the KV pool.
    pub kv_bytes_total: u64,
    /// Bytes of blocks that sequences hold, without what lies behind their sliding windows.
    pub kv_bytes_live: u64,
    /// Bytes that are kept for later prompts alone, and taken when sequences need them.
    pub kv_bytes_cached: u64,
    /// Steps run since start.
    pub steps: u64,
    /// Sequences thrown out to be recomputed, since start.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache, and found there, since start.
    pub prefix_queries: u64,
    /// See `prefix_queries`.
    pub prefix_hits: u64,
    /// Tokens computed since start, prompts and answers.
    pub tokens_computed: u64,
    /// Of those, tokens whose KV preemptions threw away.
    pub tokens_thrown_away: u64,
    /// Texts that wait to be tokenised.
    pub texts_waiting: usize,
    /// Whether new requests are still taken.
    pub accepting: bool,
    /// Time since the last step while requests wait for one; 0 while none does.
    pub step_age: std::time::Duration,
    /// How wide the KV cache is.
    pub kv: KvState,
}

impl EngineState {
    pub(super) fn of(stats: &ebb_scheduler::Stats, steps: u64, kv: KvState) -> Self {
        let usage = &stats.blocks;
        let bytes = |frames: u32| u64::from(frames) * usage.frame_bytes;
        Self {
            running: stats.running,
            waiting: stats.waiting,
            kv_bytes_total: bytes(usage.frames_total),
            kv_bytes_live: bytes(usage.frames_live),
            kv_bytes_cached: bytes(usage.frames_cached + usage.frames_hidden),
            steps,
            preemptions: stats.preemptions,
            prefix_queries: stats.prefix_query_tokens,
            prefix_hits: stats.prefix_hit_tokens,
            tokens_computed: stats.tokens_scheduled,
            tokens_thrown_away: stats.preempted_tokens,
            texts_waiting: 0,
            accepting: true,
            step_age: std::time::Duration::ZERO,
            kv,
        }
    }
}

/// Places in the channel for what wakes the engine thread for a look at its pool: one at a time.
const LOOKS: usize = 1;

/// Cheap to clone; every clone talks to the same engine thread. Dropping the last one ends that,
/// and waits until it has let go of the backend.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) inner: Arc<Inner>,
}

impl EngineHandle {
    /// Starts the engine thread. A backend that samples has as many steps in flight as it takes.
    /// With a `log`, the trajectory of every choice goes there.
    pub(crate) fn start(
        served: Served,
        limits: Config,
        pool: PoolConfig,
        backend: Box<dyn Backend>,
        recorder: Recorder,
        log: Option<TrajectoryLog>,
    ) -> Result<Self, SetupError> {
        let max_in_flight = if backend.samples() {
            backend.depth()
        } else {
            1
        };
        let limits = Config {
            max_in_flight,
            ..limits
        };
        let scheduler = Scheduler::new(limits, pool)?;
        let (sender, commands) = std::sync::mpsc::sync_channel(served.max_live + LOOKS);
        let stats = scheduler.stats();
        let look = PoolLook {
            at: std::time::Instant::now(),
            state: EngineState::of(&stats, 0, served.kv.state(&scheduler, &stats)),
            pool: KvPool::of(&scheduler),
        };
        let shared = Arc::new(Shared::new(
            served,
            recorder,
            look,
            scheduler.queue_capacity(),
        ));
        let thread = EngineThread::new(shared.clone(), commands, scheduler, backend, log);
        let (end, ended) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("ebb-engine".into())
            .spawn(move || {
                thread.run();
                drop(end);
            })
            .expect("the operating system gives the process one more thread");
        Ok(Self {
            inner: Arc::new(Inner::new(shared, sender, ended)),
        })
    }

    /// Validates, tokenises and queues a request.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] with the field, [`RequestError::QueueFull`],
    /// [`RequestError::ShuttingDown`].
    pub async fn generate(&self, request: Request) -> Result<GenerateStream, RequestError> {
        self.inner.submit(request).await
    }

    /// Aborts by the client's `request_id`; false when no such request is live.
    pub fn abort(&self, request_id: &str) -> bool {
        self.inner.abort(request_id)
    }

    /// What is served.
    pub fn model(&self) -> &ModelInfo {
        self.inner.model()
    }

    /// Token ids of a prompt as [`EngineHandle::generate`] uses them; `add_special` concerns
    /// [`Prompt::Text`] alone.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] with the field.
    pub async fn tokenize(
        &self,
        prompt: Prompt,
        add_special: bool,
    ) -> Result<Vec<u32>, RequestError> {
        prompt.validate()?;
        Ok(self.inner.tokenize(prompt, add_special).await?.to_vec())
    }

    /// Text of token ids, all of them below [`ModelInfo::vocab`].
    ///
    /// # Errors
    /// [`RequestError::ClientMemory`], [`RequestError::TextQueueFull`].
    pub async fn detokenize(
        &self,
        ids: Vec<u32>,
        skip_special: bool,
    ) -> Result<String, RequestError> {
        self.inner.detokenize(ids, skip_special).await
    }

    /// What applies where a request says nothing: the model's own recommendation.
    pub fn default_sampling(&self) -> SamplingOptions {
        self.inner.default_sampling()
    }

    /// Where the engine counts and times.
    pub fn recorder(&self) -> &Recorder {
        self.inner.recorder()
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.inner.tokenizer()
    }

    /// The engine as of its last step.
    pub fn state(&self) -> EngineState {
        EngineState {
            texts_waiting: self.inner.texts.waiting(),
            ..self.inner.state()
        }
    }

    /// Who holds the KV pool at how many bits, between two steps and at most a moment ago. While a
    /// long step runs it is the look before that.
    pub async fn kv_pool(&self) -> Arc<PoolLook> {
        let wake = || {
            // A full channel means the thread is awake anyway.
            let _ = self.inner.send(Command::Wake);
        };
        self.inner.pool_watch.look(wake).await
    }

    /// Stops admission; resolves when everything running has finished, or at `grace`, when the rest
    /// is ended with [`RequestError::ShuttingDown`].
    pub async fn drain(&self, grace: std::time::Duration) {
        self.inner.drain(grace).await;
    }

    /// Ends the engine thread, whoever else has a handle, and waits until it has let go of the
    /// backend: before a process ends. What still runs ends with an error. Blocks, for a moment
    /// only if the engine is hung.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Resolves when the engine thread has ended without being asked to: a lost device or a panic.
    /// Every stream has its error by then, and only a new process can serve.
    pub async fn died(&self) {
        self.inner.died().await;
    }

    /// Whether the engine thread still makes steps (liveness): false after a fatal backend error or
    /// a panic.
    pub fn alive(&self) -> bool {
        self.inner.alive()
    }

    /// Whether requests wait, and no step has come back for longer than the hang timeout. Ends when
    /// one does.
    pub fn is_hung(&self) -> bool {
        self.inner.is_hung()
    }
}
