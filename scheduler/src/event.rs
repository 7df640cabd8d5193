//! What the scheduler is told: a closed set of events.

use ebb_block_manager::{BlockId, StepId};

use crate::{Millis, Request, RequestId};

/// An event. See [`Scheduler::apply`](crate::Scheduler::apply).
#[derive(Clone, Debug)]
pub enum Event {
    /// A request arrived.
    Arrive(Request),
    /// A request is cancelled. Unknown or finished ones are ignored.
    Cancel(RequestId),
    /// One choice of a request is cancelled. Unknown or finished ones are ignored.
    CancelChoice(RequestId, u32),
    /// Time is now at least this. Time that runs backwards is ignored.
    Tick(Millis),
    /// The oldest step in flight has run.
    StepDone {
        /// The step.
        step: StepId,
        /// The samples, in any order: one entry for each slice with [`Logits::Last`] or
        /// [`Logits::All`] and each of its choices. Samples that are not [awaited] are discarded. A
        /// slice without one counts as failed.
        ///
        /// [`Logits::Last`]: crate::Logits::Last
        /// [`Logits::All`]: crate::Logits::All
        /// [awaited]: crate::Scheduler::awaited
        outputs: Vec<ChoiceOutput>,
        /// Blocks of [`StepPlan::shrinks`](crate::StepPlan::shrinks) that could not be encoded.
        /// They keep their level and are not tried again.
        failed_shrinks: Vec<BlockId>,
    },
    /// The oldest step in flight failed. What its copies, shrinks and slices wrote is void and done
    /// again; its table changes count as applied.
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
