//! What a client asks for, as far as scheduling goes.

use std::fmt;
use std::sync::Arc;

/// A request, named by the engine; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// A point in the engine's time, in milliseconds since a start of its choosing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Millis(pub u64);

/// One request: a prompt and how it may be served.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name. Arriving twice under one name is a bug of the caller.
    pub id: RequestId,
    /// Token ids of the prompt, at least one.
    pub prompt: Arc<[u32]>,
    /// Tokens to generate at most, for each choice. 0 computes the prompt and ends.
    pub max_tokens: u32,
    /// Choices to generate from the one prompt, at least 1.
    pub n: u32,
    /// Lower is more urgent; 0 is usual. One level is worth [`Config::aging_steps`] steps of
    /// waiting.
    ///
    /// [`Config::aging_steps`]: crate::Config::aging_steps
    pub priority: i32,
    /// When to give up, in the time of [`Event::Tick`](crate::Event::Tick).
    pub deadline: Option<Millis>,
    /// Whether the logits of every prompt row are wanted. Rows are then computed even where the
    /// prefix cache has their KV.
    pub prompt_logprobs: bool,
    /// Lowest nominal code bits of anything that the answer is computed from, keys and values
    /// alike: 16, 8, 4 or 2; what lies between acts as the next higher one. 0: as low as the
    /// schedule goes.
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
