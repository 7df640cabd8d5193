//! Block tables for callers without a scheduler: evaluation, benchmarks, tests.

use std::collections::HashMap;

use super::TableDelta;

/// Numbers blocks and tells a backend what has changed.
///
/// The caller hands out frames, and says which ones each block of each sequence has. Two sequences
/// that name the same first frame share a block.
///
/// ```
/// use ebb_kernels::backend::{TableBuilder, TableDelta};
///
/// let (mut tables, mut deltas) = (TableBuilder::default(), Vec::new());
/// tables.set(0, 0, 0, &[7]);
/// tables.take_deltas(&mut deltas);
/// assert_eq!(deltas, [
///     TableDelta::Block { block: 0, level: 0 },
///     TableDelta::Frame { block: 0, index: 0, frame: 7 },
///     TableDelta::Row { slot: 0, index: 0, block: 0 },
/// ]);
/// // The block grows: only its new frame is told.
/// deltas.clear();
/// tables.set(0, 0, 0, &[7, 4]);
/// tables.take_deltas(&mut deltas);
/// assert_eq!(deltas, [TableDelta::Frame { block: 0, index: 1, frame: 4 }]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct TableBuilder {
    /// Blocks of each slot.
    rows: Vec<Vec<u32>>,
    blocks: Vec<Known>,
    /// Blocks that no row has.
    free: Vec<u32>,
    /// Blocks of rows by their first frames.
    by_frame: HashMap<u32, u32>,
    deltas: Vec<TableDelta>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    level: u16,
    frames: Vec<u32>,
    /// Entries of rows that name it.
    uses: u32,
}

impl TableBuilder {
    /// Block `index` of the sequence in `slot` stands at a precision level, in these frames. The
    /// time depends on the frames of this one block.
    ///
    /// # Panics
    /// If there are no frames, or the sequence has fewer than `index` blocks.
    pub fn set(&mut self, slot: u32, index: usize, level: u16, frames: &[u32]) {
        let block = self.describe(level, frames);
        let row = slot as usize;
        if self.rows.len() <= row {
            self.rows.resize_with(row + 1, Vec::new);
        }
        let row = &mut self.rows[row];
        let replaced = match row.get_mut(index) {
            Some(entry) if *entry == block => return,
            Some(entry) => Some(std::mem::replace(entry, block)),
            None => {
                assert_eq!(row.len(), index, "the blocks of a sequence have no holes");
                row.push(block);
                None
            }
        };
        let index = index as u32;
        self.deltas.push(TableDelta::Row { slot, index, block });
        self.blocks[block as usize].uses += 1;
        replaced.into_iter().for_each(|old| self.let_go(old));
    }

    /// Forgets the blocks of a sequence: the slot is free for another one.
    pub fn clear_slot(&mut self, slot: u32) {
        let row = self.rows.get_mut(slot as usize).map(std::mem::take);
        for block in row.into_iter().flatten() {
            self.let_go(block);
        }
    }

    /// Moves what has changed since the last call to the end of `deltas`.
    pub fn take_deltas(&mut self, deltas: &mut Vec<TableDelta>) {
        deltas.append(&mut self.deltas);
    }

    /// The block that has these frames, and tells what is new of it.
    fn describe(&mut self, level: u16, frames: &[u32]) -> u32 {
        let known = self.by_frame.get(&frames[0]).copied();
        let block = known.unwrap_or_else(|| {
            self.free.pop().unwrap_or_else(|| {
                self.blocks.push(Known::default());
                self.blocks.len() as u32 - 1
            })
        });
        let of_block = &mut self.blocks[block as usize];
        let extends = of_block.level == level && frames.starts_with(&of_block.frames);
        if known.is_none() || !extends {
            self.by_frame.insert(frames[0], block);
            self.deltas.push(TableDelta::Block { block, level });
            of_block.level = level;
            of_block.frames.clear();
        }
        let told = of_block.frames.len();
        let added = (told as u32..).zip(&frames[told..]);
        let added = added.map(|(index, &frame)| TableDelta::Frame {
            block,
            index,
            frame,
        });
        self.deltas.extend(added);
        of_block.frames.extend_from_slice(&frames[told..]);
        block
    }

    fn let_go(&mut self, block: u32) {
        let known = &mut self.blocks[block as usize];
        known.uses -= 1;
        if known.uses == 0 {
            self.by_frame.remove(&known.frames[0]);
            self.free.push(block);
        }
    }
}
