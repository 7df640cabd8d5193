//! What the scheduler decided about requests.

use ebb_block_manager::SeqBits;
use thiserror::Error;

use crate::RequestId;

/// A decision that the engine passes on. Every request that arrives ends in exactly one
/// [`Rejected`](Notice::Rejected), or in exactly one [`Finished`](Notice::Finished) per choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The request was not taken.
    Rejected {
        /// The request.
        request: RequestId,
        /// Why.
        reason: RejectReason,
    },
    /// The request got memory for the first time.
    Admitted {
        /// The request.
        request: RequestId,
        /// Tokens of its prompt that the prefix cache had.
        cached_tokens: u32,
    },
    /// A choice lost its memory and will be computed again. For a request whose choices still
    /// share the unfinished prompt it is told once, for the first of them.
    Preempted {
        /// The request.
        request: RequestId,
        /// Which of its choices.
        choice: u32,
    },
    /// A choice is over; nothing more comes for it.
    Finished {
        /// The request.
        request: RequestId,
        /// Which of its choices.
        choice: u32,
        /// How it ended.
        reason: FinishReason,
        /// Widths of what its tokens were computed from.
        bits: SeqBits,
    },
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RejectReason {
    /// The waiting queue is at its bound, see [`Room`](crate::Room).
    #[error(
        "{waiting} requests are waiting, and this server queues {limit} beyond those that it has \
         a place for: try again later"
    )]
    QueueFull {
        /// Entries of the waiting queue, those that free places await included.
        waiting: usize,
        /// [`Config::max_waiting`](crate::Config::max_waiting).
        limit: usize,
    },
    /// There is nothing to compute.
    #[error("the prompt is empty: it needs at least one token")]
    EmptyPrompt,
    /// No choice is asked for, or more than can run at once.
    #[error("n is {n}: it must be from 1 to {limit}, the most sequences this server runs at once")]
    Choices {
        /// [`Request::n`](crate::Request::n).
        n: u32,
        /// [`Config::max_running`](crate::Config::max_running).
        limit: usize,
    },
    /// The sequence would be longer than a block table.
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
        /// Longest sequence.
        limit_tokens: u64,
    },
    /// The sequence alone would need more than the whole KV memory.
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
        /// Frames of one choice at its longest and, where blocks can shrink, at its lowest.
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
    /// The client or the engine gave it up.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// Its step failed [`FAILURES_MAX`](crate::FAILURES_MAX) times in a row.
    Error,
}
