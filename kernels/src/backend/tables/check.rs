//! Whether the sequences of a step have the memory that its rows need.

use super::{Block, BlockLevels, BlockTables};
use crate::backend::{SeqRows, StepInput, StepInputError as E};
use crate::{BLOCK_TOKENS, SUB_BLOCK_TOKENS, SUB_BLOCKS};

impl BlockTables {
    /// Checks that every sequence of a step has memory up to its last token, and that each row is
    /// written to a 16-bit block and to frames of its own. Returns these frames if the step shrinks
    /// blocks.
    pub(in crate::backend) fn check_memory(
        &mut self,
        levels: &impl BlockLevels,
        input: &StepInput,
    ) -> Result<&[u32], E> {
        self.steps += 1;
        self.written.clear();
        let collect = !input.shrinks.is_empty();
        for (seq, s) in input.seqs.iter().enumerate() {
            self.check_seq(levels, seq, s)?;
            self.check_written(levels, (seq, s), collect)?;
        }
        Ok(&self.written)
    }

    fn check_seq(&mut self, levels: &impl BlockLevels, seq: usize, s: &SeqRows) -> Result<(), E> {
        let (slot, slots) = (s.slot as usize, self.shape.slots);
        if slot >= slots {
            let slot = s.slot;
            return Err(E::Slot { seq, slot, slots });
        }
        let row = self.row(s.slot);
        let tokens = u64::from(s.position) + u64::from(s.rows);
        let needed = tokens.div_ceil(BLOCK_TOKENS as u64);
        // What was full stays so until its entry is replaced: a block that others own now is in a
        // row that has changed hands.
        let full = self.rows.get(slot).map_or(0, |row| row.full);
        let mut blocks = u64::from(full);
        let mut capacity = blocks * BLOCK_TOKENS as u64;
        while blocks < needed && blocks < row.len() as u64 {
            let held = self.sub_blocks(levels, row[blocks as usize]);
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
        self.rows[slot].full = full.max(blocks as u32);
        Ok(())
    }

    /// Sub-blocks that a block has memory for.
    fn sub_blocks(&self, levels: &impl BlockLevels, block: u32) -> usize {
        let Block { level, frames, .. } = self.blocks[block as usize];
        let frames = u32::from(frames);
        match level {
            0 => (frames as usize / levels.frames_per_sub_block()).min(SUB_BLOCKS),
            _ if frames == levels.frames(level) => SUB_BLOCKS,
            _ => 0,
        }
    }

    fn check_written(
        &mut self,
        levels: &impl BlockLevels,
        (seq, s): (usize, &SeqRows),
        collect: bool,
    ) -> Result<(), E> {
        let per_sub_block = levels.frames_per_sub_block();
        let first = s.position as usize / SUB_BLOCK_TOKENS;
        let end = (s.position as usize + s.rows as usize).div_ceil(SUB_BLOCK_TOKENS);
        let mut next = first;
        while next < end {
            let index = next / SUB_BLOCKS;
            let id = self.rows[s.slot as usize].blocks[index];
            let block = &mut self.blocks[id as usize];
            if block.level != 0 {
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
                    let other = if again { other } else { seq };
                    return Err(E::Aliased { seq, frame, other });
                }
                if collect {
                    self.written.push(frame);
                }
            }
            next = until;
        }
        Ok(())
    }
}
