//! Page tables over a pool, with frames handed out in random order.

use crate::backend::{BlockRef, SeqRows, StepInput};
use crate::kv::FrameLayout;
use crate::{BLOCK_TOKENS, SUB_BLOCK_TOKENS};

use super::Rng;

/// Builds a [`StepInput`] sequence by sequence.
#[derive(Debug)]
pub struct Pages {
    /// The step so far.
    pub input: StepInput,
    layout: FrameLayout,
    free: Vec<u32>,
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
        let input = &mut self.input;
        let tokens = position + rows;
        let (first_row, first_block) = (input.tokens.len(), input.blocks.len());
        let per_block = BLOCK_TOKENS / SUB_BLOCK_TOKENS;
        let mut sub_blocks = tokens.div_ceil(SUB_BLOCK_TOKENS);
        while sub_blocks > 0 {
            let count = sub_blocks.min(per_block) * self.layout.frames_per_sub_block;
            input.blocks.push(BlockRef {
                schedule_position: 0,
                first_frame: input.frames.len() as u32,
                frames: count as u32,
            });
            let rest = self
                .free
                .len()
                .checked_sub(count)
                .expect("the pool is large enough");
            input.frames.extend(self.free.drain(rest..));
            sub_blocks -= sub_blocks.min(per_block);
        }
        input
            .tokens
            .extend((0..rows as u32).map(|i| i + first_row as u32));
        input.seqs.push(SeqRows {
            first_row: first_row as u32,
            rows: rows as u32,
            position: position as u32,
            first_block: first_block as u32,
            blocks: (input.blocks.len() - first_block) as u32,
        });
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
        let s = &self.input.seqs[seq];
        let block = &self.input.blocks[s.first_block as usize + token / BLOCK_TOKENS];
        let per_frame = self.layout.frame_bytes / record_bytes;
        let sub_block = token % BLOCK_TOKENS / SUB_BLOCK_TOKENS;
        let slot = sub_block * self.layout.frames_per_sub_block + record / per_frame;
        let frame = self.input.frames[block.first_frame as usize + slot] as usize;
        let row_bytes = record_bytes / SUB_BLOCK_TOKENS;
        frame * self.layout.frame_bytes
            + record % per_frame * record_bytes
            + token % SUB_BLOCK_TOKENS * row_bytes
    }
}
