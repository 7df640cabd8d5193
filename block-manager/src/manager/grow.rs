//! Reserving memory for tokens before a step computes them.

use super::{BlockManager, OutOfFrames, sub_block_frames};
use crate::{BLOCK_TOKENS, BlockId, SeqId, Slot, TableDelta, sequence::Sequence};

impl BlockManager {
    /// New frames that [`grow`](Self::grow) to `len` would take, including those of a
    /// copy-on-write. Constant time.
    pub fn frames_needed(&self, seq: SeqId, len: usize) -> u32 {
        self.needed(self.seqs.get(seq), len)
    }

    /// Allocates memory for tokens `0..len` of `seq`. New tokens get memory that no other sequence
    /// reads. All or nothing: succeeds exactly if [`frames_needed`](Self::frames_needed) is at most
    /// [`available`](Self::available). Evicts the least recently used cached blocks as needed.
    pub fn grow(&mut self, seq: SeqId, len: usize) -> Result<(), OutOfFrames> {
        let slot = self.seqs.slot(seq);
        let row = self.seqs.at(slot);
        if len <= row.allocated {
            return Ok(());
        }
        let len_max = self.config.max_blocks_per_seq as usize * BLOCK_TOKENS;
        assert!(
            len <= len_max,
            "{seq} would grow to {len} tokens; its table row ends at {len_max}"
        );
        let needed = self.needed(row, len);
        if needed > 0 {
            let available = self.available();
            if needed > available {
                return Err(OutOfFrames {
                    missing: needed - available,
                });
            }
            self.evict_until(needed + self.reserve_needed_now());
        }
        self.grow_open(slot, len);
        self.grow_new(slot, len);
        self.seqs.at_mut(slot).allocated = len;
        Ok(())
    }

    fn needed(&self, row: &Sequence, len: usize) -> u32 {
        if len <= row.allocated {
            return 0;
        }
        let whole = |tokens: usize| (tokens / BLOCK_TOKENS) as u64 * self.block_frames();
        let last = sub_block_frames(&self.config, len % BLOCK_TOKENS);
        let wanted = whole(len) + u64::from(last) - whole(row.allocated);
        let owned = match self.open_block(row) {
            Some(open) if self.is_exclusive(open) => u64::from(self.blocks[open].frames),
            _ => 0,
        };
        // A former holder may have left more frames than are needed.
        u32::try_from(wanted.saturating_sub(owned)).unwrap_or(u32::MAX)
    }

    fn block_frames(&self) -> u64 {
        self.config.block_frames().into()
    }

    /// The block that the next token goes to, if it exists.
    fn open_block(&self, row: &Sequence) -> Option<BlockId> {
        row.blocks.get(row.allocated / BLOCK_TOKENS).copied()
    }

    /// Whether a block's holder may write to it: no other holds it, and it is not sealed.
    fn is_exclusive(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        block.refs == 1 && !block.sealed
    }

    /// Grows the sequence's open block up to its end or to `len`. If others hold it too, the
    /// sequence gets a copy first.
    fn grow_open(&mut self, slot: Slot, len: usize) {
        let row = self.seqs.at(slot);
        let Some(open) = self.open_block(row) else {
            return;
        };
        let start = row.allocated / BLOCK_TOKENS * BLOCK_TOKENS;
        let own = if self.is_exclusive(open) {
            open
        } else {
            self.copy_on_write(slot, open)
        };
        let filled = (len - start).min(BLOCK_TOKENS);
        let frames = u32::from(self.blocks[own].frames);
        let more = sub_block_frames(&self.config, filled).saturating_sub(frames);
        self.extend_block(own, more);
        self.blocks.set_filled(own, filled);
    }

    /// Appends blocks until the sequence has `len` tokens.
    fn grow_new(&mut self, slot: Slot, len: usize) {
        for index in self.seqs.at(slot).blocks.len()..len.div_ceil(BLOCK_TOKENS) {
            let block = self.add_block(self.seqs.at(slot).options, index);
            let filled = (len - index * BLOCK_TOKENS).min(BLOCK_TOKENS);
            self.extend_block(block, sub_block_frames(&self.config, filled));
            self.blocks.set_filled(block, filled);
            self.seqs.at_mut(slot).blocks.push(block);
            self.deltas.push(TableDelta::Row {
                slot,
                index: index as u32,
                block,
            });
        }
    }

    /// Replaces the shared last block of a sequence by a copy of the sub-blocks that hold its
    /// tokens, including tokens that a submitted step is still writing. Sub-blocks are copied
    /// whole: what another sequence wrote behind the tokens is overwritten before it is read.
    fn copy_on_write(&mut self, slot: Slot, shared: BlockId) -> BlockId {
        let row = self.seqs.at(slot);
        let (index, allocated) = (row.blocks.len() - 1, row.allocated % BLOCK_TOKENS);
        // Only committed tokens are ever shared, so the sequence has some here.
        let committed = row.committed - index * BLOCK_TOKENS;
        let options = row.options;
        let own = self.add_block(options, index);
        self.extend_block(own, sub_block_frames(&self.config, allocated));
        self.blocks.set_filled(own, allocated);
        self.blocks.copy_tokens(shared, own, committed);
        let pairs = self
            .blocks
            .frames(shared)
            .iter()
            .zip(self.blocks.frames(own));
        let before = self.copies.len();
        self.copies
            .extend(pairs.map(|(&source, &copy)| (source, copy)));
        self.issued += self.copies.len() - before;
        let planned = self.epochs.planned();
        self.blocks[shared].busy_until = planned;
        self.blocks[own].busy_until = planned;
        self.unview(shared);
        self.unpin(shared);
        self.pin(own);
        let row = self.seqs.at_mut(slot);
        row.blocks[index] = own;
        self.deltas.push(TableDelta::Row {
            slot,
            index: index as u32,
            block: own,
        });
        self.drop_ref(shared, options);
        own
    }
}
