//! One step's work, as the engine submits it.

use std::ops::Range;

use ebb_block_manager::{SeqId, ShrinkJob, Slot, StepId, TableDelta};

use crate::RequestId;

/// Stands in [`StepPlan::tokens`] for a token that a step in flight has yet to sample: the last one
/// sampled for the same request and choice. Only planned with
/// [`Config::max_in_flight`](crate::Config::max_in_flight) above 1.
pub const SAMPLED_LATER: u32 = u32::MAX;

/// Work of one step. The order of effects is `deltas`, `copies`, `shrinks`, then the slices. A step
/// may consist of shrinks alone.
///
/// A slice writes the KV of its tokens at positions `position ..` through its block table, and each
/// of its rows attends to every position up to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// The step's name; rises by 1.
    pub step: StepId,
    /// Frame copies `(source, destination)`, to be done in this order before the slices.
    pub copies: Vec<(u32, u32)>,
    /// Blocks to transcode. The step's own slices still read them in their old frames; the tables
    /// name the new ones in the first plan after this step is done.
    pub shrinks: Vec<ShrinkJob>,
    /// What to compute: at most one slice for each sequence.
    pub slices: Vec<Slice>,
    /// Token ids of all slices, one after the other.
    pub tokens: Vec<u32>,
    /// Table changes since the last plan, applied in this order before anything else. They take
    /// effect on submission, also if the step then fails.
    pub deltas: Vec<TableDelta>,
}

impl StepPlan {
    pub(crate) fn empty() -> Self {
        Self {
            step: StepId(0),
            copies: Vec::new(),
            shrinks: Vec::new(),
            slices: Vec::new(),
            tokens: Vec::new(),
            deltas: Vec::new(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.copies.clear();
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
    /// Which choice; while the choices of a request still share the prompt, the first live one.
    pub choice: u32,
    /// Its row in the device tables.
    pub slot: Slot,
    /// Position of its first token: tokens of the sequence already in the KV cache.
    pub position: u32,
    /// Where its token ids lie in [`StepPlan::tokens`].
    pub tokens: Range<u32>,
    /// Which of its rows need logits.
    pub logits: Logits,
}

/// Which rows of a slice need logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logits {
    /// None: more of the sequence is to come before anything is sampled.
    None,
    /// The last row.
    Last {
        /// Tokens to sample from it. 1: a token for [`Slice::choice`]. More, on the step that ends
        /// the prompt of a request with n choices: one for each of the choices `0..n`.
        choices: u32,
    },
    /// Every row, for prompt log probabilities. Over the slices of steps that ran, each prompt row
    /// comes once, in order.
    All {
        /// Tokens to sample from the last row, as in [`Logits::Last`]; 0 while the prompt goes on.
        choices: u32,
    },
}

impl Logits {
    /// Tokens to sample from the last row.
    pub fn choices(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Last { choices } | Self::All { choices } => choices,
        }
    }
}
