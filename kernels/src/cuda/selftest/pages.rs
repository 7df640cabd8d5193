//! Page tables over a pool, with frames handed out in random order.

use crate::backend::{StepInput, TableBuilder};
use crate::cuda::step::StepCapacity;
use crate::kv::FrameLayout;
use crate::{BLOCK_TOKENS, SUB_BLOCK_TOKENS};

use super::Rng;

/// Builds a [`StepInput`] sequence by sequence. Its deltas describe all block tables.
#[derive(Debug)]
pub struct Pages {
    /// The step so far.
    pub input: StepInput,
    layout: FrameLayout,
    free: Vec<u32>,
    tables: TableBuilder,
    /// Frames of each sequence.
    frames: Vec<Vec<u32>>,
}

impl Pages {
    /// A pool of `frames` frames, in an order that `rng` decides.
    pub fn new(layout: FrameLayout, frames: u32, rng: &mut Rng) -> Self {
        let mut free: Vec<u32> = (0..frames).collect();
        rng.shuffle(&mut free);
        Self {
            input: StepInput::default(),
            layout,
            free,
            tables: TableBuilder::default(),
            frames: Vec::new(),
        }
    }

    /// Frames that sequences of these lengths take.
    pub fn frames_for(layout: FrameLayout, lengths: impl IntoIterator<Item = usize>) -> u32 {
        let sub_blocks: usize = lengths
            .into_iter()
            .map(|n| n.div_ceil(SUB_BLOCK_TOKENS))
            .sum();
        (sub_blocks * layout.frames_per_sub_block) as u32
    }

    /// Adds a sequence with `position` tokens in the cache and `rows` new ones. Panics if the pool
    /// is too small.
    pub fn add(&mut self, position: usize, rows: usize) {
        let slot = self.frames.len() as u32;
        let mut sub_blocks = (position + rows).div_ceil(SUB_BLOCK_TOKENS);
        let mut all = Vec::new();
        for index in 0.. {
            let in_block = sub_blocks.min(BLOCK_TOKENS / SUB_BLOCK_TOKENS);
            if in_block == 0 {
                break;
            }
            let rest = self
                .free
                .len()
                .checked_sub(in_block * self.layout.frames_per_sub_block)
                .expect("the pool is large enough");
            let frames = self.free.split_off(rest);
            self.tables.set(slot, index, 0, &frames);
            all.extend(frames);
            sub_blocks -= in_block;
        }
        self.frames.push(all);
        self.tables.take_deltas(&mut self.input.deltas);
        let first_row = self.input.tokens.len() as u32;
        let tokens: Vec<u32> = (first_row..first_row + rows as u32).collect();
        self.input.push_seq(slot, position as u32, &tokens);
    }

    /// What a device needs to run the step.
    pub fn capacity(&self) -> StepCapacity {
        let frames = self.frames.iter().map(Vec::len).max().unwrap_or(0);
        let longest = frames.div_ceil(self.layout.frames_per_block());
        StepCapacity {
            rows: self.input.tokens.len(),
            seqs: self.frames.len(),
            blocks: self.frames.len() * longest,
        }
    }

    /// The frame that holds a token's row of a record of `record_bytes` bytes, and where in it.
    pub fn row_place(
        &self,
        seq: usize,
        token: usize,
        record: usize,
        record_bytes: usize,
    ) -> (u32, usize) {
        let per_frame = self.layout.frame_bytes / record_bytes;
        let sub_block = token / SUB_BLOCK_TOKENS;
        let slot = sub_block * self.layout.frames_per_sub_block + record / per_frame;
        let row_bytes = record_bytes / SUB_BLOCK_TOKENS;
        let offset = record % per_frame * record_bytes + token % SUB_BLOCK_TOKENS * row_bytes;
        (self.frames[seq][slot], offset)
    }

    /// Byte offset, in the arena, of the row of `token` of sequence `seq` in record `record` of
    /// `record_bytes` bytes.
    pub fn row_offset(
        &self,
        seq: usize,
        token: usize,
        record: usize,
        record_bytes: usize,
    ) -> usize {
        let (frame, offset) = self.row_place(seq, token, record, record_bytes);
        frame as usize * self.layout.frame_bytes + offset
    }
}
