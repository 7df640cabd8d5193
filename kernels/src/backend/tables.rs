//! The block tables of a backend, on the host.
//!
//! There are two: row `slot` lists the blocks of one sequence, and each block has a precision level
//! and its frames. A block that many sequences share is described once. Deltas alone change them.

use super::{BlockLevels, NO_FRAME, SeqRows, StepInputError as E};
use crate::{BLOCK_TOKENS, SUB_BLOCKS};

mod builder;
mod check;
#[cfg(test)]
mod tests;

pub use builder::TableBuilder;

/// One change of a backend's block tables.
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
    /// `block` begins anew at a precision level, without frames; they follow.
    Block {
        /// The block.
        block: u32,
        /// Its precision level.
        level: u16,
    },
    /// Frame `index` of `block` is `frame`. Frames have no holes, but a block behind a sliding
    /// window may have [`NO_FRAME`] for windowed ones, which no row may read.
    Frame {
        /// The block.
        block: u32,
        /// Which frame of the block.
        index: u32,
        /// Its id.
        frame: u32,
    },
}

impl TableDelta {
    /// The same with a frame of the pool where there is none, for tables whose every frame must be
    /// one that may be read.
    fn with_any_frame(self) -> Self {
        match self {
            Self::Frame {
                block,
                index,
                frame,
            } => Self::Frame {
                block,
                index,
                frame: any_frame(frame),
            },
            _ => self,
        }
    }
}

/// A frame, or the first one in place of [`NO_FRAME`].
pub(crate) fn any_frame(frame: u32) -> u32 {
    if frame == NO_FRAME { 0 } else { frame }
}

/// The most that block tables have room for.
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

/// Rows of a backend that is started without a limit.
const SLOTS_MAX: usize = 1 << 16;

impl TableShape {
    /// For `slots` sequences of `row_blocks` blocks over a pool of `frames` frames.
    pub fn new(slots: usize, row_blocks: usize, levels: &impl BlockLevels, frames: u32) -> Self {
        // Behind a sliding window a block has its other frames alone.
        let kept = |level| {
            let frames = 0..levels.frames(level) as usize;
            frames
                .filter(|index| !levels.is_windowed(level, *index))
                .count()
        };
        let fewest = (0..levels.count() as u16).map(kept).min();
        // A block that has only begun owns one sub-block.
        let fewest = fewest.map_or(1, |n| n.min(levels.frames_per_sub_block()));
        Self {
            slots,
            row_blocks,
            blocks: frames as usize / fewest.max(1),
            block_frames: levels.frames_per_sub_block() * SUB_BLOCKS,
        }
    }

    /// For any sequences that a pool of `frames` frames can hold, 65,536 at most.
    pub fn of_pool(levels: &impl BlockLevels, frames: u32) -> Self {
        let shape = Self::new(SLOTS_MAX, 0, levels, frames);
        Self {
            row_blocks: shape.blocks,
            ..shape
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Row {
    /// Entries that were ever set. A row changes hands without notice: those of a sequence before
    /// may follow its own.
    blocks: Vec<u32>,
    /// So many entries in front were found to be full blocks, and none has been replaced since.
    full: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    level: u16,
    frames: u16,
    /// The step that last wrote to it.
    written: u64,
    /// Through which of its sequences.
    writer: u32,
}

/// No place in any block.
const NOWHERE: u32 = u32::MAX;

/// The block tables as the host knows them. Steps are checked against them; the CPU backend reads
/// its blocks from them, a GPU has a copy of its own.
#[derive(Debug)]
pub struct BlockTables {
    shape: TableShape,
    /// As many as were ever named.
    rows: Vec<Row>,
    blocks: Vec<Block>,
    /// `[blocks][block_frames]`
    frames: Vec<u32>,
    /// Where each frame of the pool was last named, into `frames`.
    places: Vec<u32>,
    /// Blocks beyond level 0.
    shrunk: usize,
    /// Steps checked.
    steps: u64,
    /// Frames that the rows of the step checked last are written to, if it shrinks blocks.
    written: Vec<u32>,
}

impl BlockTables {
    /// Empty tables over a pool of `frames` frames.
    pub fn new(shape: TableShape, frames: u32) -> Self {
        Self {
            shape,
            rows: Vec::new(),
            blocks: vec![Block::default(); shape.blocks],
            frames: vec![0; shape.blocks * shape.block_frames],
            places: vec![NOWHERE; frames as usize],
            shrunk: 0,
            steps: 0,
            written: Vec::new(),
        }
    }

    /// What it was made for.
    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Applies deltas in order and hands each to `applied`, with a frame of the pool in place of
    /// [`NO_FRAME`]. One that is wrong is left out; the first such is returned.
    pub fn apply(
        &mut self,
        levels: &impl BlockLevels,
        deltas: &[TableDelta],
        mut applied: impl FnMut(&TableDelta),
    ) -> Result<(), E> {
        let mut result = Ok(());
        for (index, delta) in deltas.iter().enumerate() {
            match self.apply_one(levels, delta) {
                Ok(()) => applied(&delta.with_any_frame()),
                Err(what) if result.is_ok() => result = Err(E::Delta { delta: index, what }),
                Err(_) => {}
            }
        }
        result
    }

    fn apply_one(
        &mut self,
        levels: &impl BlockLevels,
        delta: &TableDelta,
    ) -> Result<(), &'static str> {
        let shape = self.shape;
        match *delta {
            TableDelta::Row { slot, index, block } => {
                self.known(block)?;
                let (slot, index) = (slot as usize, index as usize);
                if slot >= shape.slots {
                    return Err("names a slot that there is not");
                }
                if index >= shape.row_blocks {
                    return Err("lies beyond the end of its row");
                }
                if index > self.rows.get(slot).map_or(0, |row| row.blocks.len()) {
                    return Err("leaves a hole in its row");
                }
                if slot >= self.rows.len() {
                    self.rows.resize_with(slot + 1, Row::default);
                }
                let row = &mut self.rows[slot];
                row.full = row.full.min(index as u32);
                match row.blocks.get_mut(index) {
                    Some(entry) => *entry = block,
                    None => row.blocks.push(block),
                }
            }
            TableDelta::Block { block, level } => {
                let known = self.known(block)?;
                if usize::from(level) >= levels.count() {
                    return Err("names a precision level that there is not");
                }
                let (from, to) = (known.level > 0, level > 0);
                (known.level, known.frames) = (level, 0);
                self.shrunk = self.shrunk + usize::from(to) - usize::from(from);
            }
            TableDelta::Frame {
                block,
                index,
                frame,
            } => {
                let known = self.known(block)?;
                if index >= levels.frames(known.level) {
                    return Err("lies beyond the end of its block");
                }
                if index > u32::from(known.frames) {
                    return Err("leaves a hole in its block");
                }
                let frames = known.frames.max(index as u16 + 1);
                let place = block as usize * shape.block_frames + index as usize;
                let may_lack = levels.is_windowed(known.level, index as usize);
                match self.places.get_mut(frame as usize) {
                    Some(owner) => *owner = place as u32,
                    None if frame == NO_FRAME && may_lack => {}
                    None => return Err("names a frame outside the pool"),
                }
                self.blocks[block as usize].frames = frames;
                self.frames[place] = any_frame(frame);
            }
        }
        Ok(())
    }

    fn known(&mut self, block: u32) -> Result<&mut Block, &'static str> {
        let block = self.blocks.get_mut(block as usize);
        block.ok_or("names a block beyond the last")
    }

    /// The blocks of a slot: those of its sequence, perhaps followed by those of one before.
    pub(crate) fn row(&self, slot: u32) -> &[u32] {
        let row = self.rows.get(slot as usize);
        row.map_or(&[], |row| &row.blocks)
    }

    /// The blocks that the rows of a sequence of a checked step read.
    pub fn blocks_of(&self, seq: &SeqRows) -> &[u32] {
        let tokens = seq.position as usize + seq.rows as usize;
        let row = self.row(seq.slot);
        &row[..tokens.div_ceil(BLOCK_TOKENS).min(row.len())]
    }

    /// Precision level and frames of a block.
    pub fn block(&self, id: u32) -> (u16, &[u32]) {
        let Block { level, frames, .. } = self.blocks[id as usize];
        let first = id as usize * self.shape.block_frames;
        (level, &self.frames[first..][..frames.into()])
    }

    /// Level of a block and room for the frames of any block: the first are its own, the others
    /// are any of the pool's. A reader of many blocks need not fear one that has fewer than its
    /// place in a sequence takes.
    pub(crate) fn block_and_room(&self, id: u32) -> (u16, &[u32]) {
        let first = id as usize * self.shape.block_frames;
        let room = &self.frames[first..][..self.shape.block_frames];
        (self.blocks[id as usize].level, room)
    }

    /// Lets a block that has been described stand elsewhere for a while: what else is known of its
    /// frames stays. Where it has none, any will do.
    pub(crate) fn put_block(&mut self, id: u32, level: u16, frames: &[u32]) {
        let block = &mut self.blocks[id as usize];
        (block.level, block.frames) = (level, frames.len() as u16);
        let first = id as usize * self.shape.block_frames;
        let places = self.frames[first..].iter_mut().zip(frames);
        places.for_each(|(place, frame)| *place = any_frame(*frame));
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
}
