//! What a load test needs of a server, whatever protocol it speaks.

mod ebb;
mod openai;
mod sse;
mod target;

use std::fmt;
use std::future::Future;
use std::time::Duration;

pub use ebb::Ebb;
pub use openai::OpenAi;
pub use target::{Address, Api, Target, TargetArgs, Tls};

/// A way to reach a server. Clones share its connections.
pub trait Protocol: Clone + Send + Sync + 'static {
    /// An answer that is being received.
    type Answer: Answer;

    /// What the server says of itself.
    fn target(&self) -> impl Future<Output = Result<Target, Failure>> + Send;

    /// Sends a request; resolves when the server has taken it.
    fn generate(
        &self,
        ask: Ask,
        pace: Pace,
    ) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
}

/// An answer that is being received. Dropping it before its end cancels the request.
pub trait Answer: Send {
    /// The next piece; none when the server has closed the stream without an error.
    fn next(&mut self) -> impl Future<Output = Option<Result<Event, Failure>>> + Send;
}

/// A request for an answer of exactly `max_tokens` tokens: end tokens do not end it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// Token ids.
    pub prompt: Vec<u32>,
    /// Tokens of the answer.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// Of the sampler.
    pub seed: u64,
    /// Lowest bits of keys and values that will do; none: as low as the server goes.
    pub min_kv_bits: Option<u32>,
    /// Time after which the server is to give up.
    pub timeout: Option<Duration>,
}

/// How fast the client means to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At once.
    Eager,
    /// With pauses: little is received ahead, so that the server feels them.
    Slow,
}

/// One piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt has been read.
    Started {
        /// Tokens of it that came out of a prefix cache.
        cached_tokens: u32,
    },
    /// More tokens.
    Tokens(Vec<u32>),
    /// The answer is complete.
    Finished(Finished),
}

/// What the server tells at the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finished {
    /// Tokens of the answer.
    pub completion_tokens: u32,
    /// Lowest nominal bits of any key or value that it was computed from, where the server tells.
    pub lowest_kv_bits: Option<u32>,
    /// Mean bits of the keys and values that it was computed from, where the server tells.
    pub mean_kv_bits: Option<f32>,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// A name to count by, such as `RESOURCE_EXHAUSTED`.
    pub code: String,
    /// What the server said.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Failure {}
