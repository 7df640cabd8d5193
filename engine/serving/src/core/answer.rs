//! The pieces in which a client hears back.

/// Widths of what a choice was computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvBits {
    /// Lowest nominal bits of any key or value.
    pub lowest: u8,
    /// Mean bits of the stored keys and values that its tokens read.
    pub mean: f32,
}

impl From<ebb_scheduler::SeqBits> for KvBits {
    fn from(bits: ebb_scheduler::SeqBits) -> Self {
        Self {
            lowest: bits.lowest,
            mean: bits.mean_centibits as f32 / 100.0,
        }
    }
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop string, a stop id or the model's end token.
    Stop,
    /// `max_tokens` or the context's end.
    Length,
}

impl FinishReason {
    /// The name used in APIs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// A token's log-probability under the model's own distribution, and its best rivals.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token that was chosen (or, for a prompt, that stood there).
    pub token: u32,
    /// Its natural-log probability.
    pub logprob: f32,
    /// The most likely tokens, best first, as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Bytes that it takes, the allocator's part included.
    pub(super) fn weight(&self) -> usize {
        const ALLOCATION: usize = 16;
        size_of::<Self>() + size_of::<(u32, f32)>() * self.top.len() + ALLOCATION
    }
}

/// What an event takes beside its lists and texts.
pub(super) const EVENT_BYTES: usize = 128;

/// One piece of the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The prompt is in the KV cache. Comes once, before any [`StreamEvent::Delta`].
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// How many of them came from the prefix cache.
        cached_tokens: usize,
        /// When asked for: one entry per prompt token from the second on.
        prompt_logprobs: Vec<TokenLogprobs>,
    },
    /// More of one choice. Text and tokens may lag each other: text waits for whole characters and
    /// for stop strings.
    Delta {
        /// Index of the choice, `0..n`.
        choice: u32,
        /// Text to append.
        text: String,
        /// Tokens to append.
        token_ids: Vec<u32>,
        /// When asked for: one entry per token of `token_ids`.
        logprobs: Vec<TokenLogprobs>,
    },
    /// A choice is complete. The stream ends after the last one.
    Finished {
        /// Index of the choice, `0..n`.
        choice: u32,
        /// How it ended.
        end: End,
    },
}

/// How a choice ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// The stop string that matched, if one did.
    pub stop_string: Option<String>,
    /// The stop id (or end token) that was sampled, if one was.
    pub stop_token: Option<u32>,
    /// Tokens generated for this choice.
    pub completion_tokens: usize,
    /// Widths of what it was computed from.
    pub kv_bits: KvBits,
}

impl StreamEvent {
    /// Bytes that this event holds while it waits to be read, for the per-stream bound.
    pub fn weight(&self) -> usize {
        let logprobs = |l: &[TokenLogprobs]| l.iter().map(TokenLogprobs::weight).sum::<usize>();
        EVENT_BYTES
            + match self {
                Self::Started {
                    prompt_logprobs, ..
                } => logprobs(prompt_logprobs),
                Self::Delta {
                    text,
                    token_ids,
                    logprobs: l,
                    ..
                } => text.len() + 4 * token_ids.len() + logprobs(l),
                Self::Finished { end, .. } => end.stop_string.as_ref().map_or(0, String::len),
            }
    }
}
