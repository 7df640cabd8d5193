//! The step interface: one submission of rows, and the tokens or logits that come back.

use std::fmt;
use std::time::Duration;

use crate::model::ModelSpec;

mod check;
mod error;
mod sample;
mod shrink;
mod tables;

pub use check::{CheckScratch, StepLimits};
pub use error::{BackendError, StepInputError};
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
pub(crate) use sample::check as check_draws;
pub use sample::{
    Draw, DrawError, Drawn, Edits, LogitEdit, TEMPERATURE_MIN, TOP_MAX, draw_of, drawn_token,
};
pub use shrink::{Shrink, ShrinkFailure};
pub use tables::{KeptTables, TableDelta, TableShape};

/// A device that runs a model over a paged KV cache.
pub trait Backend: Send {
    /// Enqueues one step: the deltas, the copies, in order, then the shrinks, then the rows, then
    /// the draws. On an error nothing was enqueued but the deltas, which take effect also if the
    /// step then fails, and the steps submitted before are not affected.
    ///
    /// At most [`depth`](Self::depth) steps may be waiting for their [`wait`](Self::wait).
    fn submit(&mut self, input: &StepInput) -> Result<(), BackendError>;

    /// Waits for the oldest step that was submitted and not waited for. On an error nothing useful
    /// was computed: pages of the step's rows may or may not have been written; the steps after it
    /// still have to be waited for.
    ///
    /// # Panics
    /// If there is none: a bug of the caller.
    fn wait(&mut self) -> Result<StepOutput<'_>, BackendError>;

    /// Runs one step from submission to its end.
    fn step(&mut self, input: &StepInput) -> Result<StepOutput<'_>, BackendError> {
        self.submit(input)?;
        self.wait()
    }

    /// The model it runs.
    fn spec(&self) -> &ModelSpec;

    /// Steps that may be submitted before the first of them is waited for.
    fn depth(&self) -> usize {
        1
    }

    /// Whether it draws tokens. One that does not refuses steps with draws.
    fn draws(&self) -> bool {
        false
    }

    /// Whether it keeps block tables, so that steps may name slots and bring deltas. One that does
    /// not refuses these; one that does also takes steps that list their blocks, and forgets its
    /// tables then.
    fn keeps_tables(&self) -> bool {
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
    /// First row, into [`StepInput::tokens`].
    pub first_row: u32,
    /// Rows; at least 1.
    pub rows: u32,
    /// Position of the first row = tokens already in the KV cache.
    pub position: u32,
    /// First block of the sequence, into [`StepInput::blocks`]; 0 if it names a slot.
    pub first_block: u32,
    /// Blocks; they cover `position + rows` tokens. 0 if it names a slot.
    pub blocks: u32,
}

/// One block of a sequence: its place in the shrink schedule and its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRef {
    /// 0: all pages 16 bit.
    pub schedule_position: u16,
    /// First frame, into [`StepInput::frames`].
    pub first_frame: u32,
    /// Frames; fewer than a full block's if the block is open.
    pub frames: u32,
}

/// Everything a backend needs to run one step.
///
/// Row `r` of a sequence writes its K and V at its position, then attends to the positions up to
/// its own. Its result depends on its token, its position and the pages alone: the same bits come
/// out whatever else is in the batch, however a prompt is chunked and however many threads run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepInput {
    /// Changes of the tables that the backend keeps, done first, in order.
    pub deltas: Vec<TableDelta>,
    /// The slot of each sequence in those tables; empty if the sequences list their blocks.
    pub slots: Vec<u32>,
    /// Done next, in order.
    pub copies: Vec<FrameCopy>,
    /// Done after the copies; the blocks below are as they stand after it.
    pub shrinks: Vec<Shrink>,
    /// Token id of each row, or a [`drawn_token`].
    pub tokens: Vec<u32>,
    /// Sequences; their row ranges partition the rows in order.
    pub seqs: Vec<SeqRows>,
    /// Blocks of all sequences; none if they name slots.
    pub blocks: Vec<BlockRef>,
    /// Frame ids of all blocks listed and of all shrinks.
    pub frames: Vec<u32>,
    /// Rows whose logits are to come back, ascending.
    pub logit_rows: Vec<u32>,
    /// Tokens to choose, ascending by row.
    pub draws: Vec<Draw>,
    /// Edits of the draws.
    pub edits: Vec<LogitEdit>,
}

impl StepInput {
    /// Whether it needs a backend that keeps tables.
    pub fn is_kept(&self) -> bool {
        !(self.slots.is_empty() && self.deltas.is_empty())
    }
}

/// What a step returns.
#[derive(Clone, Copy)]
pub struct StepOutput<'a> {
    /// `[logit_rows][vocab]`, f32, in the order of [`StepInput::logit_rows`].
    pub logits: &'a [f32],
    /// The tokens, in the order of [`StepInput::draws`].
    pub draws: &'a [Drawn],
    /// Alternatives of all draws, (id, log-probability): best first, the lower id first among
    /// equals.
    pub top: &'a [(u32, f32)],
    /// Shrinks that did not happen, by their order in [`StepInput::shrinks`].
    pub failed_shrinks: &'a [ShrinkFailure],
    /// What the shrinks took of the step's time; zero where that is not known.
    pub shrink_time: Duration,
}

impl fmt::Debug for StepOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (logits, draws, failed) = (self.logits.len(), self.draws, self.failed_shrinks);
        write!(
            f,
            "StepOutput {{ {logits} logits, {draws:?}, failed {failed:?} }}"
        )
    }
}
