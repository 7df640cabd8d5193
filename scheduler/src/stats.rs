//! Counters for metrics.

use ebb_block_manager::Usage;

use crate::Scheduler;

/// The state of the scheduler in numbers. Counters start at 0 and only rise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Running sequences.
    pub running: usize,
    /// Waiting sequences, new or preempted.
    pub waiting: usize,
    /// Of these, preempted ones.
    pub waiting_preempted: usize,
    /// Steps in flight.
    pub in_flight: usize,
    /// Steps planned.
    pub steps: u64,
    /// Steps that failed.
    pub steps_failed: u64,
    /// Tokens planned, prefill and decode.
    pub tokens_scheduled: u64,
    /// Of those, tokens of prompts and recomputations.
    pub tokens_prefill: u64,
    /// Prompt tokens of requests at their first admission.
    pub prefix_query_tokens: u64,
    /// Of those, tokens found in the prefix cache.
    pub prefix_hit_tokens: u64,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that were rejected.
    pub requests_rejected: u64,
    /// Choices that finished, by whatever reason.
    pub choices_finished: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Of these, sequences that gave their slot to a more urgent one.
    pub yields: u64,
    /// Tokens whose KV was lost by preemptions.
    pub preempted_tokens: u64,
    /// Blocks that steps were to shrink.
    pub shrinks: u64,
    /// Of those, live ones.
    pub shrinks_live: u64,
    /// Blocks that could not be encoded.
    pub shrinks_failed: u64,
    /// Bytes of the blocks to shrink, as they were before.
    pub shrunk_bytes: u64,
    /// Preemptions avoided by shrinking, in thousandths: frames that shrinks of live blocks freed,
    /// over the frames that a running sequence held on average at the time.
    pub preemptions_avoided_milli: u64,
    /// Times that a running sequence waited for a step, until blocks had shrunk.
    pub stalls: u64,
    /// Frames promised to running sequences: each at its longest, at its floor. 0 where nothing
    /// shrinks.
    pub frames_promised: u64,
    /// The pool.
    pub blocks: Usage,
}

/// The counters of [`Stats`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) waiting_preempted: usize,
    pub(crate) steps: u64,
    pub(crate) steps_failed: u64,
    pub(crate) tokens_scheduled: u64,
    pub(crate) tokens_prefill: u64,
    pub(crate) prefix_query_tokens: u64,
    pub(crate) prefix_hit_tokens: u64,
    pub(crate) requests: u64,
    pub(crate) requests_rejected: u64,
    pub(crate) choices_finished: u64,
    pub(crate) preemptions: u64,
    pub(crate) yields: u64,
    pub(crate) preempted_tokens: u64,
    pub(crate) shrinks: u64,
    pub(crate) shrinks_live: u64,
    pub(crate) shrinks_failed: u64,
    pub(crate) preemptions_avoided_milli: u64,
    pub(crate) stalls: u64,
}

impl Counters {
    pub(crate) fn stats(&self, scheduler: &Scheduler) -> Stats {
        Stats {
            running: scheduler.running.len(),
            waiting: scheduler.waiting.len(),
            waiting_preempted: self.waiting_preempted,
            in_flight: scheduler.in_flight.len(),
            steps: self.steps,
            steps_failed: self.steps_failed,
            tokens_scheduled: self.tokens_scheduled,
            tokens_prefill: self.tokens_prefill,
            prefix_query_tokens: self.prefix_query_tokens,
            prefix_hit_tokens: self.prefix_hit_tokens,
            requests: self.requests,
            requests_rejected: self.requests_rejected,
            choices_finished: self.choices_finished,
            preemptions: self.preemptions,
            yields: self.yields,
            preempted_tokens: self.preempted_tokens,
            shrinks: self.shrinks,
            shrinks_live: self.shrinks_live,
            shrinks_failed: self.shrinks_failed,
            shrunk_bytes: scheduler.blocks.shrunk_bytes(),
            preemptions_avoided_milli: self.preemptions_avoided_milli,
            stalls: self.stalls,
            frames_promised: scheduler.frames_promised(),
            blocks: scheduler.blocks.usage(),
        }
    }
}
