//! Block tables that a backend keeps from step to step, changed by deltas alone.
//!
//! What a step costs to check is bounded by its deltas and its sequences, however long these are.

use super::{CheckScratch, SeqRows, StepInput, StepInputError as E, StepLimits};
use crate::kv::KvLayout;
use crate::{BLOCK_TOKENS, SUB_BLOCK_TOKENS, SUB_BLOCKS};

mod listed;
#[cfg(test)]
mod tests;

/// One change of a backend's tables: per slot the blocks of its sequence, per block its schedule
/// position and its frames.
///
/// A block that many sequences share is described once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableDelta {
    /// Entry `index` of row `slot` is now `block`. A row has no holes.
    Row {
        /// Row of the sequence.
        slot: u32,
        /// Which block of the sequence: tokens `128 * index ..`.
        index: u32,
        /// The block that holds them.
        block: u32,
    },
    /// `block` begins anew at a schedule position, without frames; they follow.
    Block {
        /// The block.
        block: u32,
        /// Its position in the shrink schedule.
        position: u16,
    },
    /// Frame `index` of `block` is `frame`. Frames have no holes.
    Frame {
        /// The block.
        block: u32,
        /// Which frame of the block.
        index: u32,
        /// Its id.
        frame: u32,
    },
}

/// How many of what a backend's tables have room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableShape {
    /// Rows: sequences that have memory at once.
    pub slots: usize,
    /// Blocks of a row.
    pub row_blocks: usize,
    /// Blocks that own frames at once.
    pub blocks: usize,
    /// Frames of a block at 16 bit, the most that one has.
    pub block_frames: usize,
}

impl TableShape {
    /// For `slots` sequences of `row_blocks` blocks over a pool of `frames` frames.
    pub fn new(slots: usize, row_blocks: usize, layout: &KvLayout, frames: u32) -> Self {
        let positions = 0..layout.positions() as u16;
        let fewest = positions.map(|p| layout.frames(p) as usize).min();
        // A block that has only begun owns one sub-block.
        let fewest = fewest.map_or(1, |n| n.min(layout.frame().frames_per_sub_block));
        Self {
            slots,
            row_blocks,
            blocks: frames as usize / fewest.max(1),
            block_frames: layout.frame().frames_per_block(),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Row {
    /// Entries that were ever set. A row changes hands without notice: those of a sequence before
    /// may follow its own.
    len: u32,
    /// So many entries in front were found to be full blocks, and none has been replaced since.
    full: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    position: u16,
    frames: u16,
    /// The step that last wrote to it.
    written: u64,
    /// Through which of its sequences.
    writer: u32,
}

/// No place in any block.
const NOWHERE: u32 = u32::MAX;

/// The tables as the host knows them: what deltas and steps are checked against.
#[derive(Debug)]
pub struct KeptTables {
    shape: TableShape,
    rows: Vec<Row>,
    /// `[slots][row_blocks]`
    entries: Vec<u32>,
    blocks: Vec<Block>,
    /// `[blocks][block_frames]`
    frames: Vec<u32>,
    /// Where each frame of the pool was last named, into `frames`.
    places: Vec<u32>,
    /// Blocks beyond position 0.
    shrunk: usize,
    steps: u64,
}

impl KeptTables {
    /// Empty tables over a pool of `frames` frames.
    pub fn new(shape: TableShape, frames: u32) -> Self {
        Self {
            shape,
            rows: vec![Row::default(); shape.slots],
            entries: vec![0; shape.slots * shape.row_blocks],
            blocks: vec![Block::default(); shape.blocks],
            frames: vec![0; shape.blocks * shape.block_frames],
            places: vec![NOWHERE; frames as usize],
            shrunk: 0,
            steps: 0,
        }
    }

    /// What it was made for.
    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Empties the tables.
    pub fn clear(&mut self) {
        self.rows.fill(Row::default());
        self.blocks.fill(Block::default());
        self.places.fill(NOWHERE);
        self.shrunk = 0;
    }

    /// Applies deltas in order and hands each to `applied`. One that is wrong is left out; the
    /// first such is returned.
    pub fn apply(
        &mut self,
        layout: &KvLayout,
        deltas: &[TableDelta],
        mut applied: impl FnMut(&TableDelta),
    ) -> Result<(), E> {
        let mut result = Ok(());
        for (index, delta) in deltas.iter().enumerate() {
            match self.apply_one(layout, delta) {
                Ok(()) => applied(delta),
                Err(what) if result.is_ok() => result = Err(E::Delta { delta: index, what }),
                Err(_) => {}
            }
        }
        result
    }

    fn apply_one(&mut self, layout: &KvLayout, delta: &TableDelta) -> Result<(), &'static str> {
        let shape = self.shape;
        match *delta {
            TableDelta::Row { slot, index, block } => {
                self.block(block)?;
                let row = self.rows.get_mut(slot as usize);
                let row = row.ok_or("names a slot that there is not")?;
                if index as usize >= shape.row_blocks {
                    return Err("lies beyond the end of its row");
                }
                if index > row.len {
                    return Err("leaves a hole in its row");
                }
                row.len = row.len.max(index + 1);
                row.full = row.full.min(index);
                self.entries[slot as usize * shape.row_blocks + index as usize] = block;
            }
            TableDelta::Block { block, position } => {
                let known = self.block(block)?;
                if usize::from(position) >= layout.positions() {
                    return Err("names a schedule position that there is not");
                }
                let (from, to) = (known.position > 0, position > 0);
                (known.position, known.frames) = (position, 0);
                self.shrunk = self.shrunk + usize::from(to) - usize::from(from);
            }
            TableDelta::Frame {
                block,
                index,
                frame,
            } => {
                let known = self.block(block)?;
                if index >= layout.frames(known.position) {
                    return Err("lies beyond the end of its block");
                }
                if index > u32::from(known.frames) {
                    return Err("leaves a hole in its block");
                }
                let frames = known.frames.max(index as u16 + 1);
                let place = block as usize * shape.block_frames + index as usize;
                let owner = self.places.get_mut(frame as usize);
                *owner.ok_or("names a frame outside the pool")? = place as u32;
                self.blocks[block as usize].frames = frames;
                self.frames[place] = frame;
            }
        }
        Ok(())
    }

    fn block(&mut self, block: u32) -> Result<&mut Block, &'static str> {
        let block = self.blocks.get_mut(block as usize);
        block.ok_or("names a block beyond the last")
    }

    fn entry(&self, slot: u32, index: usize) -> u32 {
        self.entries[slot as usize * self.shape.row_blocks + index]
    }

    /// Sub-blocks that a block has memory for.
    fn sub_blocks(&self, layout: &KvLayout, block: u32) -> usize {
        let Block {
            position, frames, ..
        } = self.blocks[block as usize];
        let frames = u32::from(frames);
        match position {
            0 => (frames as usize / layout.frame().frames_per_sub_block).min(SUB_BLOCKS),
            _ if frames == layout.frames(position) => SUB_BLOCKS,
            _ => 0,
        }
    }

    /// Checks that sequence `seq` of the step being checked has memory, which its rows alone are
    /// written to.
    fn check_seq(
        &mut self,
        layout: &KvLayout,
        (seq, slot): (usize, u32),
        s: &SeqRows,
        written: Option<&mut Vec<(u32, u32)>>,
    ) -> Result<(), E> {
        let Some(&Row { len, full }) = self.rows.get(slot as usize) else {
            let slots = self.shape.slots;
            return Err(E::Slot { seq, slot, slots });
        };
        let tokens = u64::from(s.position) + u64::from(s.rows);
        let needed = tokens.div_ceil(BLOCK_TOKENS as u64);
        // What was full stays so until its entry is replaced: a block that others own now is in a
        // row that has changed hands.
        let mut blocks = u64::from(full.min(len));
        let mut capacity = blocks * BLOCK_TOKENS as u64;
        while blocks < needed && blocks < u64::from(len) {
            let held = self.sub_blocks(layout, self.entry(slot, blocks as usize));
            capacity += (held * SUB_BLOCK_TOKENS) as u64;
            if held < SUB_BLOCKS {
                break;
            }
            blocks += 1;
        }
        if tokens > capacity {
            return Err(E::Capacity {
                seq,
                tokens,
                capacity,
            });
        }
        self.rows[slot as usize].full = full.max(blocks as u32);
        self.check_written(layout, (seq, slot), s, written)
    }

    fn check_written(
        &mut self,
        layout: &KvLayout,
        (seq, slot): (usize, u32),
        s: &SeqRows,
        mut written: Option<&mut Vec<(u32, u32)>>,
    ) -> Result<(), E> {
        let per_sub_block = layout.frame().frames_per_sub_block;
        let first = s.position as usize / SUB_BLOCK_TOKENS;
        let end = (s.position as usize + s.rows as usize).div_ceil(SUB_BLOCK_TOKENS);
        let mut next = first;
        while next < end {
            let index = next / SUB_BLOCKS;
            let id = self.entry(slot, index);
            let block = &mut self.blocks[id as usize];
            if block.position != 0 {
                return Err(E::Sealed { seq, block: index });
            }
            let other = block.writer as usize;
            let again = block.written == self.steps;
            (block.written, block.writer) = (self.steps, seq as u32);
            let until = end.min((index + 1) * SUB_BLOCKS);
            if (until - index * SUB_BLOCKS) * per_sub_block > usize::from(block.frames) {
                let held = usize::from(block.frames) / per_sub_block;
                return Err(E::Capacity {
                    seq,
                    tokens: u64::from(s.position) + u64::from(s.rows),
                    capacity: ((index * SUB_BLOCKS + held) * SUB_BLOCK_TOKENS) as u64,
                });
            }
            let base = id as usize * self.shape.block_frames;
            let (from, to) = (next % SUB_BLOCKS, until - index * SUB_BLOCKS);
            for place in base + from * per_sub_block..base + to * per_sub_block {
                let frame = self.frames[place];
                let owner = self.places[frame as usize];
                if again || owner != place as u32 {
                    return Err(E::Aliased { seq, frame, other });
                }
                if let Some(written) = &mut written {
                    written.push((frame, seq as u32));
                }
            }
            next = until;
        }
        Ok(())
    }
}

impl StepLimits<'_> {
    /// [`check`](Self::check) for a step whose sequences name slots of `tables`, which have its
    /// deltas already.
    ///
    /// Afterwards the same holds, but for blocks that are only read: those are looked at when they
    /// come into a row. No block is written by two sequences, and no frame that was given to
    /// another block since.
    pub fn check_kept(
        &self,
        input: &StepInput,
        tables: &mut KeptTables,
        scratch: &mut CheckScratch,
    ) -> Result<(), E> {
        let (slots, seqs) = (input.slots.len(), input.seqs.len());
        if slots != seqs {
            return Err(E::Slots { slots, seqs });
        }
        self.check_apart_from_memory(input)?;
        let written = &mut scratch.written;
        written.clear();
        tables.steps += 1;
        for (seq, (s, &slot)) in input.seqs.iter().zip(&input.slots).enumerate() {
            let collect = (!input.shrinks.is_empty()).then_some(&mut *written);
            tables.check_seq(self.layout, (seq, slot), s, collect)?;
        }
        written.sort_unstable();
        self.check_shrinks(input, written)
    }
}
