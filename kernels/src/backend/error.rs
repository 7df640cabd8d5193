//! Why a step cannot run.

use crate::formats::FormatId;
use crate::kv::Side;

/// A step that could not be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The input contradicts itself, the model or the pool. Only its deltas took effect.
    #[error("invalid step: {0}")]
    Input(#[from] StepInputError),
    /// The scratch memory of a step this large could not be had. Only its deltas took effect.
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

/// How a [`StepInput`](super::StepInput) can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepInputError {
    /// More entries than a `u32` counts.
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
        "sequence {seq} covers rows {first}..{end}, expected to start at {expected} and to stay \
         within {rows}"
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
    /// Rows begin where the sequence's state does not stand.
    #[error(
        "sequence {seq} begins at position {position}, but its state stands for {} tokens",
        known(*found)
    )]
    State {
        /// Index of the sequence.
        seq: usize,
        /// Position of its first row.
        position: u32,
        /// Tokens that its state stands for, if that is known.
        found: Option<u32>,
    },
    /// Two sequences of a step have the same state.
    #[error("sequence {seq} names slot {slot}, whose state another sequence of the step moves on")]
    StateTwice {
        /// Index of the sequence.
        seq: usize,
        /// The slot.
        slot: u32,
    },
    /// A copy of a state names a slot that there is not.
    #[error("copy {copy} of a state names slot {slot} of {slots}")]
    StateSlot {
        /// Index of the copy.
        copy: usize,
        /// The slot.
        slot: u32,
        /// Slots of states.
        slots: usize,
    },
    /// A sequence would write a frame that is not its own.
    #[error(
        "sequence {seq} writes frame {frame}, which is another block's or which sequence {other} \
         writes too"
    )]
    Aliased {
        /// A sequence that writes it.
        seq: usize,
        /// The frame.
        frame: u32,
        /// Another sequence that does; `seq` itself if the frame was given to another block.
        other: usize,
    },
    /// A shrink from or to a level that does not exist.
    #[error("shrink {shrink} names precision level {level}, this pool has {levels}")]
    ShrinkLevel {
        /// Index of the shrink.
        shrink: usize,
        /// The level.
        level: u16,
        /// Levels known.
        levels: usize,
    },
    /// A shrink that leads nowhere, or to 16 bit.
    #[error("shrink {shrink} leads from precision level {from} to {to}, which is no way down")]
    ShrinkNowhere {
        /// Index of the shrink.
        shrink: usize,
        /// Level left.
        from: u16,
        /// Level reached.
        to: u16,
    },
    /// A shrink that is no step down a page's ladder.
    #[error(
        "shrink {shrink} takes layer {layer}, side {side:?} from {from} to {to}, which is no way \
         down"
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
        /// Frames of all shrinks.
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
    /// A shrink lacks a frame that it must have, or has one where another windowed one is missing.
    #[error(
        "frame {index} of a list of shrink {shrink} contradicts the others: a block has all its \
         windowed frames, or none, and always all others"
    )]
    ShrinkTrimmed {
        /// Index of the shrink.
        shrink: usize,
        /// The place of the frame.
        index: usize,
    },
    /// A row would be written into a block that is no longer 16 bit.
    #[error("sequence {seq} writes into block {block}, which has been shrunk")]
    Sealed {
        /// Index of the sequence.
        seq: usize,
        /// Index of the block in the sequence.
        block: usize,
    },
    /// A row's token is one that the step before does not sample.
    #[error("row {row} takes the token of sample {sample}, but the step before has {samples}")]
    NotSampled {
        /// Row of the token.
        row: usize,
        /// The sample it names.
        sample: u32,
        /// Samples of the step before.
        samples: u32,
    },
    /// A sample contradicts itself or the step.
    #[error("sample {sample} {what}")]
    Sample {
        /// Index of the sample.
        sample: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// This backend returns logits only.
    #[error("a step of {samples} samples for a backend that samples no tokens")]
    CannotSample {
        /// Samples of the step.
        samples: usize,
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

/// A number that may not be known, in words.
fn known(tokens: Option<u32>) -> String {
    tokens.map_or("an unknown number of".to_owned(), |tokens| {
        tokens.to_string()
    })
}
