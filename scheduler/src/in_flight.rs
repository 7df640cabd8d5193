//! Steps that were planned and have not returned.

use ebb_block_manager::{SeqId, StepId};

use crate::RequestId;
use crate::slab::Key;

/// A slice of a step in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceInFlight {
    pub(crate) seq: Key,
    /// [`Seq::epoch`](crate::seq::Seq::epoch) at planning.
    pub(crate) epoch: u32,
    /// The memory that it writes; the sequence may have been preempted since.
    pub(crate) id: SeqId,
    pub(crate) request: RequestId,
    pub(crate) choice: u32,
    pub(crate) position: u32,
    pub(crate) len: u32,
    /// Tokens to be sampled.
    pub(crate) samples: u32,
    /// Whether logits of all of its tokens were asked for.
    pub(crate) all_logits: bool,
}

#[derive(Debug)]
pub(crate) struct StepInFlight {
    pub(crate) step: StepId,
    pub(crate) slices: Vec<SliceInFlight>,
    pub(crate) copies: Vec<(u32, u32)>,
}
