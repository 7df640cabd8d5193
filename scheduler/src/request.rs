//! A request, as far as scheduling needs to know it.

use std::fmt;
use std::sync::Arc;

/// Id of a request, chosen by the engine; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// A point in the engine's time, in milliseconds since a moment of its choosing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Millis(pub u64);

/// One request: a prompt and how it may be served.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its id. Arriving twice with one id is a bug of the caller.
    pub id: RequestId,
    /// Token ids of the prompt, at least one.
    pub prompt: Arc<[u32]>,
    /// Most tokens to generate for each choice. 0: only the prompt is computed.
    pub max_tokens: u32,
    /// Choices to generate from the one prompt, at least 1.
    pub n: u32,
    /// Lower is more urgent; 0 is usual. One level is worth
    /// [`aging_steps`](crate::Config::aging_steps) steps of waiting.
    pub priority: i32,
    /// When it ends with [`DeadlineExceeded`](crate::FinishReason::DeadlineExceeded), in the time
    /// of [`Event::Tick`](crate::Event::Tick).
    pub deadline: Option<Millis>,
    /// Whether the logits of every prompt token are wanted. The prompt is then computed even where
    /// the prefix cache has its KV.
    pub prompt_logprobs: bool,
    /// Lowest nominal bits of any key or value that the answer may be computed from: 16, 8, 4 or 2.
    /// What lies between counts as the next higher one. 0: as low as the shrink order goes.
    pub min_kv_bits: u8,
}

impl Request {
    /// A request with one choice, usual priority and no deadline.
    pub fn new(id: RequestId, prompt: impl Into<Arc<[u32]>>, max_tokens: u32) -> Self {
        Self {
            id,
            prompt: prompt.into(),
            max_tokens,
            n: 1,
            priority: 0,
            deadline: None,
            prompt_logprobs: false,
            min_kv_bits: 0,
        }
    }
}
