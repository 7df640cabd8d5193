//! What the scheduler decided about requests.

use ebb_block_manager::SeqBits;
use thiserror::Error;

use crate::RequestId;

/// A decision that the engine passes on. Every request ends in exactly one
/// [`Rejected`](Notice::Rejected), or in exactly one [`Finished`](Notice::Finished) for each
/// choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The request was rejected.
    Rejected {
        /// The request.
        request: RequestId,
        /// Why.
        reason: RejectReason,
    },
    /// The request was admitted for the first time.
    Admitted {
        /// The request.
        request: RequestId,
        /// Tokens of its prompt that were in the prefix cache.
        cached_tokens: u32,
    },
    /// A choice was preempted and will be computed again. While the choices of a request share its
    /// prompt, there is one notice, for the first of them.
    Preempted {
        /// The request.
        request: RequestId,
        /// Which of its choices.
        choice: u32,
    },
    /// A choice has ended; no more notices follow for it.
    Finished {
        /// The request.
        request: RequestId,
        /// Which of its choices.
        choice: u32,
        /// How it ended.
        reason: FinishReason,
        /// Bits of what its tokens were computed from.
        bits: SeqBits,
    },
}

/// Why a request was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RejectReason {
    /// The queue is full, see [`QueueCapacity`](crate::QueueCapacity).
    #[error(
        "the queue is full: {waiting} requests are waiting, and at most {limit} may wait without a \
         free batch slot: try again later"
    )]
    QueueFull {
        /// Entries of the queue, including those with a free batch slot.
        waiting: usize,
        /// [`Config::max_waiting`](crate::Config::max_waiting).
        limit: usize,
    },
    /// The prompt is empty.
    #[error("the prompt is empty: it needs at least one token")]
    EmptyPrompt,
    /// `n` is 0 or more than can run at once.
    #[error("n is {n}: it must be from 1 to {limit}, the most sequences this server runs at once")]
    Choices {
        /// [`Request::n`](crate::Request::n).
        n: u32,
        /// [`Config::max_running`](crate::Config::max_running).
        limit: usize,
    },
    /// The sequence would be longer than a row of the block table.
    #[error(
        "{prompt_tokens} prompt tokens and up to {max_tokens} generated ones make \
         {tokens}, more than the {limit_tokens} that a sequence can hold: \
         shorten the prompt or lower max_tokens"
    )]
    TooLong {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// [`Request::max_tokens`](crate::Request::max_tokens).
        max_tokens: u32,
        /// Their sum.
        tokens: u64,
        /// The longest sequence.
        limit_tokens: u64,
    },
    /// The sequence would need more than the whole KV memory.
    #[error(
        "{prompt_tokens} prompt tokens and up to {max_tokens} generated ones need at least \
         {frames_needed} frames of KV memory ({bytes_needed} bytes), but there are \
         {frames_total} ({bytes_total} bytes): shorten the prompt, lower max_tokens \
         or give the server more KV memory"
    )]
    NeverFits {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// [`Request::max_tokens`](crate::Request::max_tokens).
        max_tokens: u32,
        /// Frames of one choice at its longest, at its floor where blocks can shrink.
        frames_needed: u64,
        /// The same in bytes.
        bytes_needed: u64,
        /// Frames that an empty pool can give.
        frames_total: u64,
        /// The same in bytes.
        bytes_total: u64,
    },
    /// The same, and it would fit if it asked for fewer bits.
    #[error(
        "at {min_kv_bits} bits or more the request needs {frames_needed} frames of KV memory \
         ({bytes_needed} bytes), but there are {frames_total} ({bytes_total} bytes): lower \
         min_kv_bits or max_tokens, or give the server more KV memory"
    )]
    NeverFitsAtBits {
        /// [`Request::min_kv_bits`](crate::Request::min_kv_bits).
        min_kv_bits: u8,
        /// Frames of one choice at its longest, with its blocks at these bits.
        frames_needed: u64,
        /// The same in bytes.
        bytes_needed: u64,
        /// Frames that an empty pool can give.
        frames_total: u64,
        /// The same in bytes.
        bytes_total: u64,
    },
}

/// How a choice ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FinishReason {
    /// The engine saw an end: [`ChoiceOutput::finish`](crate::ChoiceOutput::finish).
    Stop,
    /// It has generated [`Request::max_tokens`](crate::Request::max_tokens).
    Length,
    /// It was cancelled.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// Its step failed [`FAILURES_MAX`](crate::FAILURES_MAX) times in a row.
    Error,
}
