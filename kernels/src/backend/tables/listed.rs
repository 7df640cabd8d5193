//! From whole tables to deltas and back.

#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
use super::Block;
use super::{KeptTables, TableDelta};
use crate::BLOCK_TOKENS;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
use crate::backend::SeqRows;
use crate::backend::{BlockRef, StepInput};

impl KeptTables {
    /// The same step with its blocks listed, as a backend that keeps no tables wants it. Its slots
    /// must be in range.
    pub fn listed(&self, input: &StepInput) -> StepInput {
        let mut listed = StepInput {
            slots: Vec::new(),
            deltas: Vec::new(),
            ..input.clone()
        };
        for (seq, &slot) in listed.seqs.iter_mut().zip(&input.slots) {
            let tokens = seq.position as usize + seq.rows as usize;
            let row = self.rows[slot as usize].len as usize;
            let count = tokens.div_ceil(BLOCK_TOKENS).min(row);
            (seq.first_block, seq.blocks) = (listed.blocks.len() as u32, count as u32);
            for index in 0..count {
                let id = self.entry(slot, index) as usize;
                let block = self.blocks[id];
                listed.blocks.push(BlockRef {
                    schedule_position: block.position,
                    first_frame: listed.frames.len() as u32,
                    frames: block.frames.into(),
                });
                let frames = &self.frames[id * self.shape.block_frames..];
                listed
                    .frames
                    .extend_from_slice(&frames[..block.frames.into()]);
            }
        }
        listed
    }

    /// The blocks that the rows of a sequence of a checked step read.
    #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
    pub(crate) fn read(&self, seq: &SeqRows, slot: u32) -> impl Iterator<Item = u32> + Clone {
        let tokens = seq.position as usize + seq.rows as usize;
        let row = self.rows[slot as usize].len as usize;
        let count = tokens.div_ceil(BLOCK_TOKENS).min(row);
        let first = slot as usize * self.shape.row_blocks;
        self.entries[first..first + count].iter().copied()
    }

    /// Whether any block has shrunk.
    #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
    pub(crate) fn has_shrunk(&self) -> bool {
        self.shrunk > 0
    }

    /// Whether a block has this frame.
    #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
    pub(crate) fn names(&self, frame: u32) -> bool {
        let place = self.places[frame as usize] as usize;
        let block = self.blocks.get(place / self.shape.block_frames.max(1));
        block.is_some_and(|b| place % self.shape.block_frames < b.frames.into())
            && self.frames[place] == frame
    }

    /// Position and frames of a block.
    #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
    pub(crate) fn pages_of(&self, id: u32) -> (u16, &[u32]) {
        let Block {
            position, frames, ..
        } = self.blocks[id as usize];
        let first = id as usize * self.shape.block_frames;
        (position, &self.frames[first..][..frames.into()])
    }
}

impl StepInput {
    /// The same step over kept tables: its sequences take the slots `0..`, and its deltas describe
    /// them whole. Entry `i` of its list of blocks becomes block `i`.
    pub fn kept(&self) -> Self {
        let mut kept = Self {
            blocks: Vec::new(),
            slots: (0..self.seqs.len() as u32).collect(),
            ..self.clone()
        };
        for (block, b) in (0..).zip(&self.blocks) {
            let position = b.schedule_position;
            kept.deltas.push(TableDelta::Block { block, position });
            let frames = &self.frames[b.first_frame as usize..][..b.frames as usize];
            let frames = (0..).zip(frames).map(|(index, &frame)| TableDelta::Frame {
                block,
                index,
                frame,
            });
            kept.deltas.extend(frames);
        }
        for (slot, seq) in (0..).zip(&mut kept.seqs) {
            let rows = (0..seq.blocks).map(|index| TableDelta::Row {
                slot,
                index,
                block: seq.first_block + index,
            });
            kept.deltas.extend(rows);
            (seq.first_block, seq.blocks) = (0, 0);
        }
        kept
    }
}
