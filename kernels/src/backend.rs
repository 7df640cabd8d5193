//! The step interface: one submission of rows, and the tokens or logits that come back.

use std::fmt;
use std::time::Duration;

use crate::formats::FormatId;
use crate::kv::Side;
use crate::model::ModelSpec;

mod check;
mod sample;
mod shrink;
mod tables;

pub use check::{CheckScratch, StepLimits};
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

/// A step that could not be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The input contradicts itself, the model or the pool. Nothing was touched.
    #[error("invalid step: {0}")]
    Input(#[from] StepInputError),
    /// The scratch memory of a step this large could not be had. Nothing was touched.
    #[error("cannot allocate {bytes} bytes of scratch for a step of {rows} rows")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Rows of the step.
        rows: usize,
    },
    /// A worker thread panicked; this is a bug in the backend. Later steps may run.
    #[error("a compute thread panicked: {0}")]
    Panicked(String),
    /// The device failed.
    #[error("{message}")]
    Device {
        /// What was tried and what the device answered.
        message: String,
        /// No later step can run: the process must end and start anew.
        lost: bool,
    },
}

/// How a [`StepInput`] can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepInputError {
    /// More rows, blocks or frames than a `u32` counts.
    #[error("{what} has {len} entries, more than 2^31")]
    TooMany {
        /// The field.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// A token is not in the vocabulary.
    #[error("row {row} has token {token}, but the vocabulary ends at {vocab}")]
    Token {
        /// Row of the token.
        row: usize,
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The sequences' row ranges are not an ordered partition of the rows.
    #[error(
        "sequence {seq} covers rows {first}..{end}, expected to start at {expected} and to stay within {rows}"
    )]
    Rows {
        /// Index of the sequence.
        seq: usize,
        /// Its first row.
        first: u32,
        /// One past its last row.
        end: u64,
        /// Where it should have started.
        expected: usize,
        /// Rows in the step.
        rows: usize,
    },
    /// The last rows belong to no sequence.
    #[error("the sequences cover {expected} of the step's {rows} rows")]
    Uncovered {
        /// Rows covered.
        expected: usize,
        /// Rows in the step.
        rows: usize,
    },
    /// A sequence names blocks beyond the end of the list.
    #[error("sequence {seq} names blocks {first}..{end} of {len}")]
    Blocks {
        /// Index of the sequence.
        seq: usize,
        /// Its first block.
        first: u32,
        /// One past its last block.
        end: u64,
        /// Blocks in the step.
        len: usize,
    },
    /// A block names frames beyond the end of the list.
    #[error("block {block} names frames {first}..{end} of {len}")]
    Frames {
        /// Index of the block.
        block: usize,
        /// Its first frame.
        first: u32,
        /// One past its last frame.
        end: u64,
        /// Frames in the step.
        len: usize,
    },
    /// A frame id is outside the pool.
    #[error("{what} names frame {frame}, but the pool has {pool}")]
    Frame {
        /// Where the id stands.
        what: &'static str,
        /// The id.
        frame: u32,
        /// Frames in the pool.
        pool: u32,
    },
    /// A sequence's blocks do not reach its last token.
    #[error("sequence {seq} needs memory for {tokens} tokens, its blocks hold {capacity}")]
    Capacity {
        /// Index of the sequence.
        seq: usize,
        /// Tokens after the step.
        tokens: u64,
        /// Tokens its blocks can hold.
        capacity: u64,
    },
    /// A delta contradicts the tables; the others have been applied.
    #[error("delta {delta} {what}")]
    Delta {
        /// Index of the delta.
        delta: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Some sequences name slots and some do not.
    #[error("{slots} slots for {seqs} sequences")]
    Slots {
        /// Slots named.
        slots: usize,
        /// Sequences.
        seqs: usize,
    },
    /// A sequence names a slot that there is not.
    #[error("sequence {seq} names slot {slot} of {slots}")]
    Slot {
        /// Index of the sequence.
        seq: usize,
        /// The slot.
        slot: u32,
        /// Slots of the tables.
        slots: usize,
    },
    /// This backend wants the blocks of each step listed.
    #[error("a step with slots or deltas for a backend that keeps no tables")]
    KeepsNoTables,
    /// A frame would be written through two sub-blocks.
    #[error("frame {frame} would be written by sequences {seq} and {other} in one step")]
    Aliased {
        /// A sequence that writes it.
        seq: usize,
        /// The frame.
        frame: u32,
        /// Another sequence that does, or the same one at another place.
        other: usize,
    },
    /// The schedule position is one this backend does not have.
    #[error("block {block} is at schedule position {position}, this pool has {positions}")]
    Position {
        /// Index of the block.
        block: usize,
        /// Its position.
        position: u16,
        /// Positions known.
        positions: usize,
    },
    /// A shrunk block does not name as many frames as its position takes.
    #[error(
        "block {block} names {frames} frames, at schedule position {position} it takes {expected}"
    )]
    ShrunkFrames {
        /// Index of the block.
        block: usize,
        /// Its position.
        position: u16,
        /// Frames named.
        frames: u32,
        /// Frames of the position.
        expected: u32,
    },
    /// A shrink from or to a position that does not exist.
    #[error("shrink {shrink} names schedule position {position}, this pool has {positions}")]
    ShrinkPosition {
        /// Index of the shrink.
        shrink: usize,
        /// The position.
        position: u16,
        /// Positions known.
        positions: usize,
    },
    /// A shrink that leads nowhere, or to 16 bit.
    #[error("shrink {shrink} leads from schedule position {from} to {to}, which is no way down")]
    ShrinkNowhere {
        /// Index of the shrink.
        shrink: usize,
        /// Position left.
        from: u16,
        /// Position reached.
        to: u16,
    },
    /// A shrink that is no step down a page's ladder.
    #[error(
        "shrink {shrink} takes layer {layer}, side {side:?} from {from} to {to}, which is no way down"
    )]
    ShrinkFormats {
        /// Index of the shrink.
        shrink: usize,
        /// Layer of the page.
        layer: usize,
        /// Its side.
        side: Side,
        /// Its format.
        from: FormatId,
        /// The format it should get.
        to: FormatId,
    },
    /// A shrink names frames beyond the end of the list.
    #[error("shrink {shrink} names frames {first}..{end} of {len}")]
    ShrinkFrames {
        /// Index of the shrink.
        shrink: usize,
        /// First frame.
        first: u32,
        /// One past its last frame.
        end: u64,
        /// Frames in the step.
        len: usize,
    },
    /// A frame of a shrink is used twice in the step.
    #[error("frame {frame} of shrink {shrink} is also written or shrunk elsewhere in the step")]
    ShrinkAliased {
        /// Index of the shrink.
        shrink: usize,
        /// The frame.
        frame: u32,
    },
    /// A row would be written into a block that is no longer 16 bit.
    #[error("sequence {seq} writes into block {block}, which has been shrunk")]
    Sealed {
        /// Index of the sequence.
        seq: usize,
        /// Index of the block: in the list, or in the row of the sequence's slot.
        block: usize,
    },
    /// A row's token is one that the step before does not draw.
    #[error("row {row} takes the token of draw {draw}, but the step before has {draws}")]
    NotDrawn {
        /// Row of the token.
        row: usize,
        /// The draw it names.
        draw: u32,
        /// Draws of the step before.
        draws: u32,
    },
    /// A draw contradicts itself or the step.
    #[error("draw {draw} {what}")]
    Draw {
        /// Index of the draw.
        draw: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// This backend returns logits only.
    #[error("a step of {draws} draws for a backend that draws no tokens")]
    CannotDraw {
        /// Draws of the step.
        draws: usize,
    },
    /// The rows whose logits are wanted are not ascending or not in the step.
    #[error("logit row {row} is out of order or beyond the {rows} rows of the step")]
    LogitRow {
        /// The offending entry.
        row: u32,
        /// Rows in the step.
        rows: usize,
    },
}
