//! A backend whose pages store token ids and what these depend on, instead of keys and values.
//!
//! It keeps its own copy of the block tables and changes it only by a plan's table changes. Steps
//! run in order, each on the tables as its plan left them. What a sequence attends to is read back
//! through the tables and compared with the sequence's own tokens. So a page that was aliased,
//! reused too early, shared wrongly, not copied or half shrunk shows at once. Every cell also knows
//! the lowest bits that it was computed from, so a request that is served from less than it asked
//! for shows too.

mod cell;
mod run;
mod states;

use std::collections::{BTreeMap, VecDeque};

use ebb_block_manager::{
    BLOCK_TOKENS, BlockManager, NO_FRAME, PoolConfig, SUB_BLOCK_TOKENS, SeqId, TableDelta,
};
use ebb_scheduler::{Config, Mode, Slice, StepPlan};

use super::model::Context;
use cell::{Cell, POISON};

#[derive(Clone, Debug, Default)]
struct MirrorBlock {
    level: u16,
    frames: Vec<u32>,
}

/// What the sequence of a slice consists of, by the client's own records.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Lowest bits that it may be computed from.
    pub min_kv_bits: u8,
    /// Whether the level of every block that it reads follows from its own length.
    pub is_fixed: bool,
    /// KVmix's share of the recent context, in thousandths.
    pub recent_permille: u32,
    /// Tokens of a prompt that read each other at 16 bit, if the mode has chunks of them.
    pub chunk: Option<usize>,
    /// The prompt.
    pub prompt: &'a [u32],
    /// Contexts after each of its tokens.
    pub prompt_contexts: &'a [Context],
    /// Tokens sampled since.
    pub tokens: &'a [u32],
    /// Contexts after each of them.
    pub contexts: &'a [Context],
}

impl Expected<'_> {
    fn at(&self, position: usize) -> Option<(u32, Context)> {
        if let Some(token) = self.prompt.get(position) {
            return Some((*token, self.prompt_contexts[position]));
        }
        let at = position - self.prompt.len();
        self.tokens.get(at).map(|token| (*token, self.contexts[at]))
    }
}

/// A plan on its way through the device.
#[derive(Debug)]
pub struct Submitted {
    /// The plan.
    pub plan: StepPlan,
    /// For each slice: an earlier failure of its sequence made it void.
    pub void: Vec<bool>,
    tables: Vec<SliceView>,
    /// Blocks of all slices.
    blocks: Vec<BlockView>,
    /// Frames of all blocks.
    frames: Vec<u32>,
    new_frames: Vec<u32>,
    touched: Vec<bool>,
}

/// Blocks of a slice, in [`Submitted::blocks`].
#[derive(Clone, Copy, Debug)]
struct SliceView {
    first: usize,
    len: usize,
}

/// A block, as a step finds it.
#[derive(Clone, Copy, Debug)]
struct BlockView {
    /// Its precision level.
    level: u16,
    /// Its frames, in [`Submitted::frames`].
    first_frame: usize,
    frames: usize,
}

/// The backend.
#[derive(Debug)]
pub struct Device {
    pool: PoolConfig,
    is_static: bool,
    /// Rows of its tables.
    slots: usize,
    rows: Vec<Vec<usize>>,
    blocks: Vec<MirrorBlock>,
    pages: Vec<[Cell; SUB_BLOCK_TOKENS]>,
    queue: VecDeque<Submitted>,
    /// States by slot, if sequences have any: what they stand for, if that is known, and the lowest
    /// bits that they were computed from.
    states: Vec<Option<(Context, u8)>>,
    /// Position of the first token that a sequence computed itself.
    begun: BTreeMap<SeqId, u32>,
}

impl Device {
    /// A device with a pool full of poison and block tables for the running sequences.
    pub fn new(pool: PoolConfig, config: &Config) -> Self {
        let frames = pool.frames;
        let states = pool.states.map_or(0, |slots| slots.first + slots.count);
        Self {
            states: vec![None; states as usize],
            pool,
            is_static: config.mode == Mode::Static,
            slots: config.max_running,
            rows: Vec::new(),
            blocks: Vec::new(),
            pages: vec![[POISON; SUB_BLOCK_TOKENS]; frames as usize],
            queue: VecDeque::new(),
            begun: BTreeMap::new(),
        }
    }

    /// Steps submitted and not run yet.
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Takes a plan. Fails if it hands out a frame that a step in flight may touch, or if its table
    /// changes do not give the block manager's tables.
    pub fn submit(&mut self, plan: StepPlan, manager: &BlockManager) -> Result<(), String> {
        let mut new_frames = Vec::new();
        for delta in &plan.deltas {
            self.apply(delta, &mut new_frames)?;
        }
        let mut frames = Vec::new();
        let mut blocks = Vec::new();
        let mut tables = Vec::new();
        for slice in &plan.slices {
            self.begun.entry(slice.seq).or_insert(slice.position);
            let first = blocks.len();
            self.view(slice, manager, &mut blocks, &mut frames)?;
            let len = blocks.len() - first;
            tables.push(SliceView { first, len });
        }
        let mut touched = vec![false; self.pages.len()];
        let copied = plan.copies.iter().flat_map(|(src, dst)| [src, dst]);
        let shrunk = plan.shrinks.iter();
        let shrunk = shrunk.flat_map(|job| job.old.iter().chain(&job.new));
        let all = frames.iter().chain(copied).chain(shrunk);
        for frame in all.filter(|frame| **frame != NO_FRAME) {
            touched[*frame as usize] = true;
        }
        for job in &plan.shrinks {
            for &frame in job.new.iter().filter(|frame| **frame != NO_FRAME) {
                self.check_unused(frame)?;
            }
        }
        let void = vec![false; plan.slices.len()];
        self.queue.push_back(Submitted {
            plan,
            void,
            tables,
            blocks,
            frames,
            new_frames,
            touched,
        });
        Ok(())
    }

    /// The blocks of a slice by the device's tables, which must be those of the block manager.
    fn view(
        &self,
        slice: &Slice,
        manager: &BlockManager,
        blocks: &mut Vec<BlockView>,
        frames: &mut Vec<u32>,
    ) -> Result<(), String> {
        let table = manager.table(slice.seq);
        let row = self.rows.get(slice.slot.0 as usize);
        let row = row.map_or(&[][..], Vec::as_slice);
        let mut room = 0;
        for (index, (id, (level, want))) in table.ids().iter().zip(table.iter()).enumerate() {
            let have = row.get(index).copied();
            if have != Some(id.0 as usize) {
                return Err(format!(
                    "{}: entry {index} of its row is {have:?}",
                    slice.seq
                ));
            }
            let mirror = &self.blocks[id.0 as usize];
            // The device is not told what a block gives back behind a window.
            let agrees = |(have, want): (&u32, &u32)| have == want || *want == NO_FRAME;
            let is_same =
                mirror.frames.len() == want.len() && mirror.frames.iter().zip(want).all(agrees);
            if mirror.level != level || !is_same {
                return Err(format!("{}: {id} is {mirror:?}, not {want:?}", slice.seq));
            }
            blocks.push(BlockView {
                level,
                first_frame: frames.len(),
                frames: want.len(),
            });
            frames.extend(self.seen(slice.position as usize, index, level, want));
            room += if level == 0 {
                want.len() / self.parts() * SUB_BLOCK_TOKENS
            } else {
                BLOCK_TOKENS
            };
        }
        let end = slice.position as usize + slice.tokens.len();
        if room < end {
            return Err(format!("{}: {end} tokens in memory for {room}", slice.seq));
        }
        Ok(())
    }

    /// The frames of a block that a slice reads which begins at `position`: behind the window
    /// none that is windowed.
    fn seen(
        &self,
        position: usize,
        block: usize,
        level: u16,
        frames: &[u32],
    ) -> impl Iterator<Item = u32> {
        let first = match &self.pool.window {
            Some(window) => (position + 1).saturating_sub(window.tokens as usize),
            None => 0,
        };
        let is_behind = (block + 1) * BLOCK_TOKENS <= first;
        frames.iter().enumerate().map(move |(index, &frame)| {
            match is_behind && self.is_windowed(level, index) {
                true => NO_FRAME,
                false => frame,
            }
        })
    }

    fn is_windowed(&self, level: u16, index: usize) -> bool {
        is_windowed(&self.pool, level, index)
    }

    /// Frames of a 16-bit sub-block.
    fn parts(&self) -> usize {
        self.pool.frames_per_sub_block as usize
    }

    fn check_unused(&self, frame: u32) -> Result<(), String> {
        if self.queue.iter().any(|step| step.touched[frame as usize]) {
            return Err(format!(
                "frame {frame} is reused while a step in flight has it"
            ));
        }
        Ok(())
    }

    fn apply(&mut self, delta: &TableDelta, new_frames: &mut Vec<u32>) -> Result<(), String> {
        match *delta {
            TableDelta::Row { slot, index, block } => {
                let room = self.pool.max_blocks_per_seq;
                if slot.0 as usize >= self.slots || index >= room {
                    let slots = self.slots;
                    return Err(format!("{delta:?} beyond {slots} rows of {room} blocks"));
                }
                let row = entry(&mut self.rows, slot.0 as usize);
                // A device that counts the entries of a row takes no holes.
                if index as usize > row.len() {
                    return Err(format!("{delta:?} leaves a hole"));
                }
                *entry(row, index as usize) = block.0 as usize;
                entry(&mut self.blocks, block.0 as usize);
            }
            TableDelta::Block { block, level } => {
                let mirror = entry(&mut self.blocks, block.0 as usize);
                mirror.level = level;
                mirror.frames.clear();
            }
            TableDelta::Frame {
                block,
                index,
                frame,
            } => {
                if frame != NO_FRAME {
                    self.check_unused(frame)?;
                } else if !self.is_windowed(self.blocks[block.0 as usize].level, index as usize) {
                    return Err(format!("{delta:?}, which every layer reads"));
                }
                let mirror = entry(&mut self.blocks, block.0 as usize);
                *entry(&mut mirror.frames, index as usize) = frame;
                // A shrink has written the others.
                if mirror.level == 0 && frame != NO_FRAME {
                    new_frames.push(frame);
                }
            }
        }
        Ok(())
    }

    /// Makes the slices of a sequence in steps not run yet void, because an earlier one failed.
    pub fn void(&mut self, seq: SeqId) {
        for step in &mut self.queue {
            for (slice, void) in step.plan.slices.iter().zip(&mut step.void) {
                *void |= slice.seq == seq;
            }
        }
    }

    /// Makes all slices in steps not run yet void, where sequences have states: what these stand
    /// for is not known once a step has failed.
    pub fn void_states(&mut self) {
        if self.pool.states.is_some() {
            self.queue.iter_mut().for_each(|step| step.void.fill(true));
        }
    }

    /// Whether a step that failed should have copied the block that a slice begins in, and the
    /// slice's sequence still has that block.
    pub fn lacks_copy(&self, step: &Submitted, slice: &Slice) -> bool {
        let row = self.rows.get(slice.slot.0 as usize);
        let block = row.and_then(|row| row.get(slice.position as usize / BLOCK_TOKENS));
        let own = block.map_or(&[][..], |block| &self.blocks[*block].frames);
        let mut copies = step.plan.copies.iter();
        copies.any(|(_, copy)| own.contains(copy))
    }

    /// Takes the oldest step off the queue.
    pub fn pop(&mut self) -> Option<Submitted> {
        self.queue.pop_front()
    }
}

/// Whether a frame of a block has nothing but pages of layers with a window.
pub(in crate::sim) fn is_windowed(pool: &PoolConfig, level: u16, index: usize) -> bool {
    let Some(window) = &pool.window else {
        return false;
    };
    let (index, kept) = match level {
        0 => (
            index as u32 % pool.frames_per_sub_block,
            window.kept_per_sub_block,
        ),
        _ => (index as u32, window.kept.level(level).size.frames),
    };
    index >= kept
}

/// Element `index`, which is made if it is not there.
fn entry<T: Default + Clone>(items: &mut Vec<T>, index: usize) -> &mut T {
    if items.len() <= index {
        items.resize(index + 1, T::default());
    }
    &mut items[index]
}
