//! What can happen to the scheduler: a closed set.

use ebb_block_manager::{BlockId, StepId};

use crate::{Millis, Request, RequestId};

/// Something that happened. See [`Scheduler::apply`](crate::Scheduler::apply).
#[derive(Clone, Debug)]
pub enum Event {
    /// A request came in.
    Arrive(Request),
    /// The client gave up on a request. Unknown or finished requests are ignored.
    Cancel(RequestId),
    /// The engine gave up on one choice of a request. Unknown or finished ones are ignored.
    CancelChoice(RequestId, u32),
    /// Time is now at least this. Time that runs backwards is ignored.
    Tick(Millis),
    /// The oldest step in flight has run.
    StepDone {
        /// The step.
        step: StepId,
        /// What was sampled, in any order: one entry for each slice with [`Logits::Last`] or
        /// [`Logits::All`] and each of its choices. Entries that nothing waits for are ignored
        /// (see [`Scheduler::awaited`]); a slice that misses one counts as failed.
        ///
        /// [`Logits::Last`]: crate::Logits::Last
        /// [`Logits::All`]: crate::Logits::All
        /// [`Scheduler::awaited`]: crate::Scheduler::awaited
        outputs: Vec<ChoiceOutput>,
        /// Blocks of [`StepPlan::shrinks`](crate::StepPlan::shrinks) that could not be transcoded.
        /// They stay as they were and are not tried again.
        failed_shrinks: Vec<BlockId>,
    },
    /// The oldest step in flight did not run to its end. Whatever its copies, shrinks and slices
    /// wrote counts as unwritten and is computed again; its table deltas count as applied.
    StepFailed {
        /// The step.
        step: StepId,
    },
}

/// One sampled token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChoiceOutput {
    /// The request.
    pub request: RequestId,
    /// Which of its choices.
    pub choice: u32,
    /// The token.
    pub token: u32,
    /// Whether the choice ends with this token (end of sequence, a stop id, a stop string).
    pub finish: bool,
}
