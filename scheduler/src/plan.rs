//! A step's plan, as the engine submits it.

use std::ops::Range;

use ebb_block_manager::{SeqId, ShrinkJob, Slot, StepId, TableDelta};

use crate::RequestId;

/// In [`StepPlan::tokens`]: a token that a step in flight has not sampled yet. It is the last one
/// sampled for the same request and choice. Occurs only with
/// [`Config::max_in_flight`](crate::Config::max_in_flight) above 1.
pub const SAMPLED_LATER: u32 = u32::MAX;

/// What one step does: first `deltas`, then `copies`, `state_copies`, `shrinks` and the slices. A
/// step may consist of shrinks alone.
///
/// A slice writes the KV of its tokens at positions `position ..` through its block table. Each of
/// its tokens attends to every position up to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// The step's id; rises by 1.
    pub step: StepId,
    /// Frame copies `(source, destination)`, in this order.
    pub copies: Vec<(u32, u32)>,
    /// States to copy `(source, destination)`, in this order; only where sequences have states.
    pub state_copies: Vec<(u32, u32)>,
    /// Blocks to shrink. The step's own slices still read the old frames. The first plan after this
    /// step is done changes the tables to the new ones.
    pub shrinks: Vec<ShrinkJob>,
    /// What to compute: at most one slice of each sequence.
    pub slices: Vec<Slice>,
    /// Token ids of all slices, one after the other.
    pub tokens: Vec<u32>,
    /// Table changes since the last plan, in this order. They take effect on submission, even if
    /// the step fails.
    pub deltas: Vec<TableDelta>,
}

impl StepPlan {
    pub(crate) fn empty() -> Self {
        Self {
            step: StepId(0),
            copies: Vec::new(),
            state_copies: Vec::new(),
            shrinks: Vec::new(),
            slices: Vec::new(),
            tokens: Vec::new(),
            deltas: Vec::new(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.copies.clear();
        self.state_copies.clear();
        self.shrinks.clear();
        self.slices.clear();
        self.tokens.clear();
        self.deltas.clear();
    }
}

/// A run of tokens of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The sequence, as the block manager knows it.
    pub seq: SeqId,
    /// Its request.
    pub request: RequestId,
    /// Its choice; while the choices of a request still share the prompt, the first active one.
    pub choice: u32,
    /// Its row of the device's block tables.
    pub slot: Slot,
    /// Position of its first token: the number of tokens before it, which have KV by then.
    pub position: u32,
    /// Its token ids in [`StepPlan::tokens`].
    pub tokens: Range<u32>,
    /// Which of its tokens need logits.
    pub logits: Logits,
}

/// Which tokens of a slice need logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logits {
    /// None: nothing is sampled before later tokens are computed.
    None,
    /// The last one.
    Last {
        /// Tokens to sample. 1: a token for [`Slice::choice`]. More, in the step that ends the
        /// prompt of a request with n choices: one for each of the choices `0..n`.
        choices: u32,
    },
    /// All, for prompt log-probabilities. Over the slices of steps that ran, each prompt token
    /// comes once, in order.
    All {
        /// Tokens to sample from the last one, as in [`Logits::Last`]; 0 while the prompt goes on.
        choices: u32,
    },
}

impl Logits {
    /// Tokens to sample.
    pub fn choices(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Last { choices } | Self::All { choices } => choices,
        }
    }
}
