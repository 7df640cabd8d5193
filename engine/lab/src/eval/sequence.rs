//! One sequence driven straight through the backend and the block manager, without a scheduler: for
//! evaluation and for tests that look at logits.

use ebb_block_manager::{BlockManager, OutOfFrames, SeqId, Slot, StepId, TableDelta};
use ebb_kernels::backend::{Backend, BackendError, FrameCopy, StepInput};
use thiserror::Error;

use ebb_serving::core::table_delta;

/// A sequence could not be fed.
#[derive(Debug, Error)]
pub enum FeedError {
    /// The pool is too small.
    #[error(
        "the KV memory is too small for this context: {missing} more frames are needed; raise \
         --kv-memory or lower --ctx"
    )]
    OutOfMemory {
        /// Frames missing.
        missing: u32,
    },
    /// A page cannot have the format asked for.
    #[error("the KV cache cannot be shrunk as asked: {0}")]
    Shrink(String),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<OutOfFrames> for FeedError {
    fn from(short: OutOfFrames) -> Self {
        Self::OutOfMemory {
            missing: short.missing,
        }
    }
}

/// Which logits a feed returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// Of every token fed.
    All,
    /// Of the last one.
    Last,
}

/// A backend and a pool that serve one sequence at a time.
pub struct Sequence {
    backend: Box<dyn Backend>,
    blocks: BlockManager,
    seq: SeqId,
    slot: Slot,
    len: usize,
    step: u64,
    input: StepInput,
    deltas: Vec<TableDelta>,
    copies: Vec<(u32, u32)>,
}

impl Sequence {
    /// Starts empty.
    pub fn new(backend: Box<dyn Backend>, mut blocks: BlockManager) -> Self {
        let seq = SeqId(0);
        let slot = blocks.create(seq, &[], 0).slot;
        Self {
            backend,
            blocks,
            seq,
            slot,
            len: 0,
            step: 0,
            input: StepInput::default(),
            deltas: Vec::new(),
            copies: Vec::new(),
        }
    }

    /// Forgets everything fed so far.
    pub fn reset(&mut self) {
        self.blocks.release(self.seq);
        self.seq = SeqId(self.seq.0 + 1);
        self.slot = self.blocks.create(self.seq, &[], 0).slot;
        self.len = 0;
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was fed yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The model.
    pub fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// Appends `tokens` (at least one) in one step and returns logits `[rows][vocab]`.
    ///
    /// # Errors
    /// When the pool is full or the backend fails.
    pub fn feed(&mut self, tokens: &[u32], rows: Rows) -> Result<&[f32], FeedError> {
        let position = self.len;
        self.blocks.grow(self.seq, position + tokens.len())?;
        self.blocks.drain_deltas(&mut self.deltas);
        self.blocks.drain_copies(&mut self.copies);
        self.step += 1;
        self.blocks.begin_step(StepId(self.step));
        self.fill(tokens, position, rows);
        let result = self.backend.step(&self.input);
        self.blocks.retire_step(StepId(self.step));
        let output = result?;
        self.blocks.commit(self.seq, tokens);
        self.len += tokens.len();
        Ok(output.logits)
    }

    fn fill(&mut self, tokens: &[u32], position: usize, rows: Rows) {
        let input = &mut self.input;
        input.clear();
        let deltas = self.deltas.drain(..);
        input.deltas.extend(deltas.map(|delta| table_delta(&delta)));
        let copies = self.copies.drain(..);
        input
            .copies
            .extend(copies.map(|(src, dst)| FrameCopy { src, dst }));
        let new = input.push_seq(self.slot.0, position as u32, tokens);
        match rows {
            Rows::All => input.logit_rows.extend(new),
            Rows::Last => input.logit_rows.push(new.end - 1),
        }
    }
}
