//! The step interface: what the engine asks of a device, and what comes back.
//!
//! A *step* is one forward pass over a batch: prefill chunks and decode tokens of many sequences
//! beside each other, over a paged KV cache. The scheduler plans it, [`StepInput`] describes it, a
//! [`Backend`] (the CPU's or a GPU's) runs it, and [`StepOutput`] is what comes back. There is no
//! separate prefill or decode call: a sequence with one row decodes, one with more prefills.
//!
//! # Block tables
//! A sequence's KV cache lies in blocks of 128 tokens, all layers together, and a block lies in
//! frames of one pool, in any order. The backend keeps two tables from step to step:
//!
//! | table | index | entry |
//! |---|---|---|
//! | rows | slot of a sequence, and which of its blocks | block |
//! | blocks | block | its precision level and its frames |
//!
//! A step names slots. It lists no blocks: [`TableDelta`]s tell what has changed in the tables
//! since the step before, so the host's work depends on the changes and the sequences of a step,
//! not on the lengths of their contexts. A block that many sequences share, such as one of the
//! prefix cache, is described once.
//!
//! At level 0 a block is 16 bit and grows by sub-blocks of 16 tokens, each of which is a few
//! frames. At a later level all its tokens are there, in fewer bits and fewer frames.
//! [`KvLayout`](crate::kv::KvLayout) says how many frames a level takes, and in which formats.
//!
//! # The parts of a step
//! In this order, which is that of the fields of [`StepInput`]:
//!
//! 1. **Deltas** change the tables.
//! 2. **Copies** copy whole frames: copy-on-write of a block that two sequences begin to fill.
//!    Of a model with recurrent layers, whole states too ([`StateCopy`]).
//! 3. **Shrinks** rewrite full blocks at a later level, into other frames. The old frames stay as
//!    they are.
//! 4. **Rows** run through the model. In each layer all rows write their K and V to their
//!    sequence's blocks, then all attend, so a sequence may read a prefix that another one writes
//!    in the same step.
//! 5. **Logits** of some rows come back.
//! 6. **Samples**: tokens are sampled from logits on the device, if it [can](Backend::samples).
//!
//! Any part may be empty. A shrink and the deltas that point its block to the new frames may come
//! in the same step or one after the other. If a shrink fails (a value has no code in the new
//! format), rows whose tables name the new frames read the old ones in this step, and the caller
//! has to take the deltas back: see [`ShrinkFailure`].
//!
//! # Example
//! A prompt of three tokens, then one decode step. Callers with a scheduler get slots and deltas
//! from the block manager; here a [`TableBuilder`] makes them.
//! ```
//! use ebb_kernels::backend::{Backend, BackendError, StepInput, TableBuilder};
//!
//! /// The two tokens that most likely follow a prompt; `frames`: room for 16 tokens.
//! fn continued(backend: &mut dyn Backend, frames: &[u32]) -> Result<[u32; 2], BackendError> {
//!     let (mut tables, mut step) = (TableBuilder::default(), StepInput::default());
//!     // Prefill: the sequence in slot 0 gets its first block, at level 0.
//!     tables.set(0, 0, 0, frames);
//!     tables.take_deltas(&mut step.deltas);
//!     let rows = step.push_seq(0, 0, &[1, 15_043, 29_892]);
//!     step.logit_rows.push(rows.end - 1);
//!     let first = largest(backend.step(&step)?.logits);
//!     // Decode: three tokens are in the cache. The block has room, so there are no deltas.
//!     step.clear();
//!     let rows = step.push_seq(0, 3, &[first]);
//!     step.logit_rows.push(rows.end - 1);
//!     let second = largest(backend.step(&step)?.logits);
//!     Ok([first, second])
//! }
//! # fn largest(logits: &[f32]) -> u32 {
//! #     let ids = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
//! #     ids.unwrap_or(0) as u32
//! # }
//! ```
//!
//! # Two steps in flight
//! A backend with a [`depth`](Backend::depth) of 2 takes step n + 1 while step n runs. If step n
//! has not sampled a token yet, step n + 1 refers to it by its sample index, with
//! [`pending_sample`].

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::model::ModelSpec;

mod check;
mod error;
mod levels;
mod sample;
mod shrink;
mod states;
mod tables;

pub use check::StepLimits;
pub use error::{BackendError, StepInputError};
pub use levels::BlockLevels;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
pub(crate) use sample::check as check_samples;
pub use sample::{
    Edits, LogitEdit, REPETITION_PENALTIES, SampleFailure, SampleRequest, SampledToken,
    TEMPERATURE_MIN, TOP_MAX, pending_sample, pending_sample_of,
};
pub use shrink::{NO_FRAME, Shrink, ShrinkFailure};
pub use states::{StateCopy, StatePositions};
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
pub(crate) use tables::any_frame;
pub use tables::{BlockTables, TableBuilder, TableDelta, TableShape};

/// A device that runs a model over a paged KV cache.
///
/// Steps run in the order in which they were submitted. A caller submits, and later waits for the
/// output; with a [`depth`](Self::depth) of 2 it may plan and submit step n + 1 while step n runs.
pub trait Backend: Send {
    /// Enqueues one step.
    ///
    /// # Errors
    /// The step does not run, and there is nothing to [`wait`](Self::wait) for. Its deltas have
    /// taken effect, as those of any step, so a later one need not repeat them. Nothing else has,
    /// unless the device failed. Steps submitted before are not affected.
    ///
    /// # Panics
    /// If [`depth`](Self::depth) steps are waiting for their `wait` already.
    fn submit(&mut self, input: &StepInput) -> Result<(), BackendError>;

    /// Waits for the oldest step that was submitted and not waited for.
    ///
    /// # Errors
    /// The step has no output, and pages of its rows may or may not have been written. Steps
    /// submitted after it still have to be waited for.
    ///
    /// # Panics
    /// If there is no such step.
    fn wait(&mut self) -> Result<StepOutput<'_>, BackendError>;

    /// Submits one step and waits for it.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit) and [`wait`](Self::wait).
    fn step(&mut self, input: &StepInput) -> Result<StepOutput<'_>, BackendError> {
        self.submit(input)?;
        self.wait()
    }

    /// The model that it runs.
    fn spec(&self) -> &ModelSpec;

    /// Steps that may be submitted before the first of them is waited for.
    fn depth(&self) -> usize {
        1
    }

    /// Bytes of the weights by what they are, the most first: bf16, or the name of the codes that
    /// packed ones have ([`Codes`](crate::weight_formats::Codes)). Nothing of a backend that does
    /// not tell.
    fn weight_bytes(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Whether it samples tokens itself. One that does not refuses steps with samples.
    fn samples(&self) -> bool {
        false
    }
}

/// Copy of one whole frame, for copy-on-write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameCopy {
    /// Frame read.
    pub src: u32,
    /// Frame written.
    pub dst: u32,
}

/// The rows of one sequence in a step: `rows` consecutive tokens from `position` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqRows {
    /// The sequence's row of the block table. Two sequences of a step have different slots.
    pub slot: u32,
    /// First row, into [`StepInput::tokens`].
    pub first_row: u32,
    /// Rows; at least 1. A decoding sequence has one, a prefill chunk more.
    pub rows: u32,
    /// Position of the first row = tokens already in the KV cache.
    pub position: u32,
}

/// Everything a backend needs to run one step, in the order in which it is done.
///
/// Row `r` of a sequence writes its K and V at its position, then attends to the positions up to
/// its own. Its result depends on its token, its position and the pages alone: the same bits come
/// out whatever else is in the batch, however a prompt is chunked and however many threads run. On
/// a GPU that holds up to rounding, unless its mode is batch-invariant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepInput {
    /// Changes of the block tables, in order.
    pub deltas: Vec<TableDelta>,
    /// Frames to copy, in order.
    pub copies: Vec<FrameCopy>,
    /// States to copy, in order; only of a model with recurrent layers.
    pub state_copies: Vec<StateCopy>,
    /// Blocks to rewrite at a later precision level, all at once.
    pub shrinks: Vec<Shrink>,
    /// Frame ids of the shrinks.
    pub shrink_frames: Vec<u32>,
    /// Token id of each row, or a [`pending_sample`] of the step before.
    pub tokens: Vec<u32>,
    /// Sequences; their row ranges partition the rows in order.
    pub seqs: Vec<SeqRows>,
    /// Rows whose logits are to come back, ascending.
    pub logit_rows: Vec<u32>,
    /// Tokens to sample, ascending by row.
    pub samples: Vec<SampleRequest>,
    /// Edits of the samples.
    pub edits: Vec<LogitEdit>,
}

impl StepInput {
    /// Empties the step and keeps its memory.
    pub fn clear(&mut self) {
        let Self {
            deltas,
            copies,
            state_copies,
            shrinks,
            shrink_frames,
            tokens,
            seqs,
            logit_rows,
            samples,
            edits,
        } = self;
        deltas.clear();
        copies.clear();
        state_copies.clear();
        shrinks.clear();
        shrink_frames.clear();
        tokens.clear();
        seqs.clear();
        logit_rows.clear();
        samples.clear();
        edits.clear();
    }

    /// Adds rows for `tokens`, which follow the `position` tokens that the sequence in `slot` has
    /// in the KV cache. Returns the rows.
    pub fn push_seq(&mut self, slot: u32, position: u32, tokens: &[u32]) -> Range<u32> {
        let first_row = self.tokens.len() as u32;
        self.tokens.extend_from_slice(tokens);
        let rows = tokens.len() as u32;
        self.seqs.push(SeqRows {
            slot,
            first_row,
            rows,
            position,
        });
        first_row..first_row + rows
    }

    /// Adds a shrink of a block from one precision level, in frames `old`, to a later one, in
    /// frames `new`.
    pub fn push_shrink(&mut self, (from, old): (u16, &[u32]), (to, new): (u16, &[u32])) {
        let mut list = |frames: &[u32]| {
            let first = self.shrink_frames.len() as u32;
            self.shrink_frames.extend_from_slice(frames);
            first
        };
        let (source, target) = (list(old), list(new));
        self.shrinks.push(Shrink {
            from,
            to,
            source,
            target,
        });
    }
}

/// What a step returns.
#[derive(Clone, Copy)]
pub struct StepOutput<'a> {
    /// `[logit_rows][vocab]`, f32, in the order of [`StepInput::logit_rows`].
    pub logits: &'a [f32],
    /// The tokens, in the order of [`StepInput::samples`].
    pub samples: &'a [SampledToken],
    /// Alternatives of all samples, (id, log-probability): best first, the lower id first among
    /// equals.
    pub top: &'a [(u32, f32)],
    /// Shrinks that did not happen, by their order in [`StepInput::shrinks`].
    pub failed_shrinks: &'a [ShrinkFailure],
    /// What the shrinks took of the step's time; zero where that is not known.
    pub shrink_time: Duration,
}

impl fmt::Debug for StepOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (logits, samples, failed) = (self.logits.len(), self.samples, self.failed_shrinks);
        write!(
            f,
            "StepOutput {{ {logits} logits, {samples:?}, failed {failed:?} }}"
        )
    }
}
