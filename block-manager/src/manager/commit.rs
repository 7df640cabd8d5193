//! Tokens that are in the KV cache for certain: sealing and publishing the blocks they fill.

use super::BlockManager;
use crate::{
    BLOCK_TOKENS, BlockId, SUB_BLOCK_TOKENS, SeqId, Slot,
    prefix::{ChainHash, EntryId},
};

impl BlockManager {
    /// Notes that `tokens` are in the KV cache, after those committed before. Seals the blocks that
    /// they fill and publishes them to the prefix cache, so call it only for steps that have run.
    pub fn commit(&mut self, seq: SeqId, tokens: &[u32]) {
        let slot = self.seqs.slot(seq);
        let row = self.seqs.at(slot);
        let (committed, allocated) = (row.committed, row.allocated);
        assert!(
            committed + tokens.len() <= allocated,
            "{seq} commits {} tokens after {committed}, but memory was allocated for {allocated}: \
             grow before the step, commit after it",
            tokens.len(),
        );
        let mut rest = tokens;
        while !rest.is_empty() {
            let room = BLOCK_TOKENS - self.seqs.at(slot).committed % BLOCK_TOKENS;
            let (now, later) = rest.split_at(rest.len().min(room));
            self.commit_in_block(slot, now);
            rest = later;
        }
        self.slide_window(slot);
    }

    /// Commits tokens that go to one block.
    fn commit_in_block(&mut self, slot: Slot, tokens: &[u32]) {
        let row = self.seqs.at_mut(slot);
        let (index, from) = (row.full_blocks(), row.committed % BLOCK_TOKENS);
        let (block, to) = (row.blocks[index], from + tokens.len());
        row.committed += tokens.len();
        let ids = self.blocks.tokens_mut(block);
        ids[from..to].copy_from_slice(tokens);
        if self.config.prefix_cache {
            let (sub_blocks, _) = ids.as_chunks::<SUB_BLOCK_TOKENS>();
            let completed = &sub_blocks[from / SUB_BLOCK_TOKENS..to / SUB_BLOCK_TOKENS];
            completed
                .iter()
                .for_each(|sub_block| row.hash.push(sub_block));
        }
        match (from, to) {
            (0, BLOCK_TOKENS) => self.seal(slot, index),
            (0, _) => self.pin(block),
            (_, BLOCK_TOKENS) => {
                self.unpin(block);
                self.seal(slot, index);
            }
            _ => {}
        }
    }

    /// Seals block `index` of a sequence, which is full.
    fn seal(&mut self, slot: Slot, index: usize) {
        let row = self.seqs.at(slot);
        let block = row.blocks[index];
        let before = index.checked_sub(1).map(|before| row.blocks[before]);
        let (input_bits, is_private) = (row.read.lowest, row.options.is_private);
        self.blocks.seal(block);
        self.clock += 1;
        let state = &mut self.blocks[block];
        (state.sealed_at, state.input_bits) = (self.clock, input_bits);
        self.protect(block);
        match before {
            Some(before) => self.unprotect(before),
            // The first block is protected a second time, as long as the sequence lives.
            None => self.protect(block),
        }
        if index >= self.seqs.at(slot).recent_from {
            self.pin(block);
        }
        if self.config.prefix_cache && !is_private {
            let parent = before.map_or(EntryId::NONE, |before| self.blocks[before].entry);
            let hash = self.index.end_hash(&self.seqs.at(slot).hash);
            self.publish(block, parent, hash);
            self.seqs.at_mut(slot).hash = ChainHash::after(hash);
        }
    }

    /// Publishes a sealed block after `parent`. Of several blocks with the same tokens, later
    /// prompts share the one that can serve most requests, of equals the first that is still held.
    /// The others stay with the sequences that computed them. One that is only cached is freed.
    fn publish(&mut self, block: BlockId, parent: EntryId, hash: u64) {
        let tokens = self.blocks.tokens(block);
        let Some(entry) = self.index.find(&self.blocks, parent, hash, tokens) else {
            self.blocks[block].entry = self.index.insert(parent, hash, block);
            return;
        };
        self.blocks[block].entry = entry;
        let canonical = self.index.get(entry).block;
        if self.blocks[canonical].refs > 0 && self.worth(block) > self.worth(canonical) {
            self.index.set_block(entry, block);
            let duplicates = &mut self.index.get_mut(entry).duplicates;
            duplicates.push_back(&mut self.blocks, canonical);
        } else if self.blocks[canonical].refs > 0 {
            self.index
                .get_mut(entry)
                .duplicates
                .push_back(&mut self.blocks, block);
        } else {
            self.cached
                .remove(&mut self.blocks, canonical, self.epochs.done());
            self.index.set_block(entry, block);
            self.free_block(canonical);
        }
    }

    /// Keeps the sealed blocks of a sequence from block `from` on at 16 bit where they are, and
    /// those that it seals from now on; blocks before it may shrink. `usize::MAX`: all may.
    pub fn keep_recent(&mut self, seq: SeqId, from: usize) {
        let slot = self.seqs.slot(seq);
        let row = self.seqs.at_mut(slot);
        let before = std::mem::replace(&mut row.recent_from, from);
        let full = row.full_blocks();
        for index in before.min(full)..from.min(full) {
            self.unpin(self.seqs.at(slot).blocks[index]);
        }
        for index in from.min(full)..before.min(full) {
            self.pin(self.seqs.at(slot).blocks[index]);
        }
    }

    pub(super) fn protect(&mut self, block: BlockId) {
        self.blocks[block].protections += 1;
        self.requeue(block);
    }

    pub(super) fn unprotect(&mut self, block: BlockId) {
        self.blocks[block].protections -= 1;
        self.requeue(block);
    }

    /// Protects a block that a holder has not filled, so that it stays at 16 bit.
    pub(super) fn pin(&mut self, block: BlockId) {
        self.blocks[block].pins += 1;
        self.protect(block);
    }

    pub(super) fn unpin(&mut self, block: BlockId) {
        self.blocks[block].pins -= 1;
        self.unprotect(block);
    }
}
