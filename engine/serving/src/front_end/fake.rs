//! An engine without a model: what it does is written in the prompt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ebb_models::tokenizer::SpecialIds;

use crate::client_memory::ClientMemory;
use crate::core::{
    End, EngineState, FinishReason, GenerateStream, KvBits, ModelInfo, PoolLook, Prompt, Request,
    RequestError, STREAM_LIMIT_BYTES, SendError, StreamEvent, StreamSender, TokenLogprobs, stream,
};
use crate::front_end::Engine;
use crate::kv_pool::KvPool;
use crate::metrics::Recorder;
use crate::sampling::SamplingOptions;

/// The text of tokens below 256: the byte of that number.
const BYTES: &[u8] = &{
    let mut bytes = [0; 256];
    let mut i = 0;
    while i < 256 {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};

/// Begins every text.
const BOS: u32 = 1;

/// Shared by all clones.
pub(crate) struct Inner {
    model: ModelInfo,
    recorder: Recorder,
    /// Whether requests are taken.
    pub(crate) accepting: AtomicBool,
    /// Whether the engine makes steps.
    pub(crate) alive: AtomicBool,
    pub(crate) hung: AtomicBool,
    /// Requests that have not ended.
    pub(crate) live: AtomicUsize,
    /// Streams whose reader went away before the end.
    pub(crate) aborted: AtomicUsize,
    /// Bytes that `flood` got rid of before its stream was full.
    pub(crate) flooded: AtomicUsize,
}

#[derive(Clone)]
pub(crate) struct Fake(pub(crate) Arc<Inner>);

impl Fake {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            model: ModelInfo {
                name: "fake".into(),
                aliases: vec!["org/fake".into()],
                description: "a script, not a model".into(),
                device: "none".into(),
                max_context: 1000,
                max_running: 2,
                vocab: 500,
                eos_token_ids: vec![2],
                special: SpecialIds {
                    bos: Some(BOS),
                    eos: Some(2),
                    unk: None,
                },
                has_chat_template: true,
                kv_bytes_per_token: 64,
            },
            recorder: Recorder::new("fake", 1000),
            accepting: AtomicBool::new(true),
            alive: AtomicBool::new(true),
            hung: AtomicBool::new(false),
            live: AtomicUsize::new(0),
            aborted: AtomicUsize::new(0),
            flooded: AtomicUsize::new(0),
        }))
    }
}

fn delta(text: &str) -> StreamEvent {
    StreamEvent::Delta {
        choice: 0,
        text: text.into(),
        token_ids: vec![7],
        logprobs: vec![],
    }
}

/// Counts as live until it is dropped.
struct Working<'a>(&'a AtomicUsize);

impl<'a> Working<'a> {
    fn new(live: &'a AtomicUsize) -> Self {
        live.fetch_add(1, Ordering::Relaxed);
        Self(live)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a prompt says: its text, the last message, or the characters that its tokens stand for.
fn script(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Chat(chat) => chat
            .messages
            .last()
            .map(|m| m.content.clone())
            .unwrap_or_default(),
        Prompt::Tokens(ids) => {
            let ids = ids.iter().filter(|&&id| id != BOS);
            ids.filter_map(|&id| char::from_u32(id)).collect()
        }
    }
}

/// Log-probabilities of these characters, and of the next one.
fn likely(bytes: impl Iterator<Item = u8>) -> Vec<TokenLogprobs> {
    let one = |byte| TokenLogprobs {
        token: u32::from(byte),
        logprob: -0.5,
        top: vec![(u32::from(byte) + 1, -0.25)],
    };
    bytes.map(one).collect()
}

/// Every choice says "Hé!" in pieces: of the é the first token has one byte, and no text.
fn say(tx: &StreamSender, sampling: &SamplingOptions) {
    for choice in 0..sampling.n {
        for (text, bytes) in [("H", &b"H"[..]), ("", b"\xc3"), ("é!", b"\xa9!")] {
            let logprobs = sampling.logprobs.map(|_| likely(bytes.iter().copied()));
            let _ = tx.send(StreamEvent::Delta {
                choice,
                text: text.into(),
                token_ids: bytes.iter().map(|&byte| u32::from(byte)).collect(),
                logprobs: logprobs.unwrap_or_default(),
            });
        }
        let _ = tx.send(StreamEvent::Finished {
            choice,
            end: End {
                reason: FinishReason::Stop,
                stop_string: sampling.stop.first().cloned(),
                stop_token: Some(2),
                completion_tokens: 4,
                kv_bits: KvBits {
                    lowest: 4,
                    mean: 5.25,
                },
            },
        });
    }
    tx.close(None);
}

async fn count(tx: &StreamSender, pieces: u32, pause: Duration) {
    for i in 0..pieces {
        tokio::time::sleep(pause).await;
        if tx.send(delta(&format!("{i} "))).is_err() {
            return;
        }
    }
    let _ = tx.send(StreamEvent::Finished {
        choice: 0,
        end: End {
            reason: FinishReason::Length,
            stop_string: None,
            stop_token: None,
            completion_tokens: pieces as usize,
            kv_bits: KvBits {
                lowest: 4,
                mean: 5.25,
            },
        },
    });
    tx.close(None);
}

async fn flood(tx: &StreamSender, inner: &Inner) {
    let text = "z".repeat(1000);
    loop {
        match tx.send(delta(&text)) {
            Ok(()) => inner.flooded.fetch_add(text.len(), Ordering::Relaxed),
            Err(SendError::Gone) => return,
            Err(SendError::Full) => break,
        };
        tokio::time::sleep(Duration::from_micros(50)).await;
    }
    tx.close(Some(RequestError::SlowReader {
        limit_bytes: STREAM_LIMIT_BYTES,
    }));
}

impl Engine for Fake {
    async fn generate(&self, request: Request) -> Result<GenerateStream, RequestError> {
        request.validate(self.0.model.vocab)?;
        let deadline = request.deadline(std::time::Instant::now());
        let inner = self.0.clone();
        if !inner.accepting.load(Ordering::Relaxed) {
            return Err(RequestError::ShuttingDown);
        }
        let script = script(&request.prompt);
        let sampling = request.sampling;
        match script.as_str() {
            "panic" => panic!("the script says so"),
            "full" => return Err(RequestError::QueueFull { limit: 3 }),
            "broken" => return Err(RequestError::Internal("no luck".into())),
            _ => {}
        }
        let dropped = inner.clone();
        let (tx, rx) = stream(&ClientMemory::unlimited(), None, move |_| {
            dropped.aborted.fetch_add(1, Ordering::Relaxed);
        });
        inner.live.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let asked = sampling.prompt_logprobs.map(|_| likely(script.bytes()));
            let _ = tx.send(StreamEvent::Started {
                prompt_tokens: 3,
                cached_tokens: 1,
                prompt_logprobs: asked.unwrap_or_default(),
            });
            match script.as_str() {
                "say" => say(&tx, &sampling),
                long if long.starts_with("saysay") => say(&tx, &sampling),
                "count" => count(&tx, 5, Duration::from_millis(1)).await,
                "slowly" => count(&tx, 10, Duration::from_millis(50)).await,
                "flood" => flood(&tx, &inner).await,
                "vanish" => drop(tx),
                "forever" => {
                    let is_late = || deadline.is_some_and(|at| at <= std::time::Instant::now());
                    while !is_late() && tx.send(delta("x")).is_ok() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    tx.close(Some(RequestError::DeadlineExceeded));
                }
                other => tx.close(Some(RequestError::Internal(format!("no script {other}")))),
            }
            inner.live.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(rx.of_prompt(3))
    }

    fn abort(&self, request_id: &str) -> bool {
        request_id == "known"
    }

    async fn tokenize(&self, prompt: Prompt, add_special: bool) -> Result<Vec<u32>, RequestError> {
        let Prompt::Text(text) = prompt else {
            return Ok(script(&prompt).bytes().map(u32::from).collect());
        };
        if text == "forever" {
            let _working = Working::new(&self.0.live);
            std::future::pending::<()>().await;
        }
        let bos = add_special.then_some(BOS);
        Ok(bos.into_iter().chain(text.bytes().map(u32::from)).collect())
    }

    async fn detokenize(&self, token_ids: Vec<u32>, _: bool) -> Result<String, RequestError> {
        Ok(format!("{token_ids:?}"))
    }

    fn model(&self) -> &ModelInfo {
        &self.0.model
    }

    fn token_bytes(&self, id: u32) -> &[u8] {
        BYTES.get(id as usize..=id as usize).unwrap_or(b"<special>")
    }

    fn default_sampling(&self) -> SamplingOptions {
        SamplingOptions::default()
    }

    fn state(&self) -> EngineState {
        let running = self.0.live.load(Ordering::Relaxed);
        EngineState {
            running,
            accepting: self.0.accepting.load(Ordering::Relaxed),
            ..Default::default()
        }
    }

    async fn kv_pool(&self) -> Arc<PoolLook> {
        Arc::new(PoolLook {
            at: std::time::Instant::now(),
            state: self.state(),
            pool: KvPool::default(),
        })
    }

    fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    async fn drain(&self, grace: Duration) {
        self.0.accepting.store(false, Ordering::Relaxed);
        let until = tokio::time::Instant::now() + grace;
        while self.0.live.load(Ordering::Relaxed) > 0 && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn alive(&self) -> bool {
        self.0.alive.load(Ordering::Relaxed)
    }

    fn is_hung(&self) -> bool {
        self.0.hung.load(Ordering::Relaxed)
    }
}
