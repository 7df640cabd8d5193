//! Tokens that have arrived in the cache: sealing and publishing the blocks they fill.

use super::BlockManager;
use crate::{
    BLOCK_TOKENS, BlockId, SUB_BLOCK_TOKENS, SeqId, Slot,
    prefix::{ChainHash, EntryId},
};

impl BlockManager {
    /// Tells that `tokens` are in the KV cache after the ones committed before, as of the last
    /// submitted step. Seals the blocks they fill and publishes them to the prefix cache, so call
    /// it only for steps that can no longer fail.
    pub fn commit(&mut self, seq: SeqId, tokens: &[u32]) {
        let slot = self.seqs.slot(seq);
        let row = self.seqs.at(slot);
        let (committed, granted) = (row.committed, row.granted);
        assert!(
            committed + tokens.len() <= granted,
            "{seq} commits {} tokens after {committed}, but memory was granted for {granted}: \
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
    }

    /// Commits tokens that go to one block.
    fn commit_in_block(&mut self, slot: Slot, tokens: &[u32]) {
        let row = self.seqs.at_mut(slot);
        let (index, from) = (row.full_blocks(), row.committed % BLOCK_TOKENS);
        let (block, to) = (row.blocks[index], from + tokens.len());
        row.committed += tokens.len();
        let places = self.blocks.tokens_mut(block);
        places[from..to].copy_from_slice(tokens);
        if self.config.prefix_cache {
            let (sub_blocks, _) = places.as_chunks::<SUB_BLOCK_TOKENS>();
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

    /// Block `index` of the row is full.
    fn seal(&mut self, slot: Slot, index: usize) {
        let row = self.seqs.at(slot);
        let block = row.blocks[index];
        let before = index.checked_sub(1).map(|before| row.blocks[before]);
        let (provenance, is_private) = (row.read.lowest, row.terms.is_private);
        self.blocks.seal(block);
        self.clock += 1;
        let state = &mut self.blocks[block];
        (state.birth, state.provenance) = (self.clock, provenance);
        self.guard(block);
        match before {
            Some(before) => self.unguard(before),
            // The first block is guarded a second time, for as long as the sequence lives.
            None => self.guard(block),
        }
        if self.config.prefix_cache && !is_private {
            let parent = before.map_or(EntryId::NONE, |before| self.blocks[before].entry);
            let hash = self.index.end_hash(&self.seqs.at(slot).hash);
            self.publish(block, parent, hash);
            self.seqs.at_mut(slot).hash = ChainHash::after(hash);
        }
    }

    /// Makes a sealed block findable after `parent`. Of several with one content, the one that
    /// satisfies most requests is what later prompts share, of equals the one that came first and
    /// is still held; the others stay with those who computed them. A copy that only the cache kept
    /// has then served its purpose.
    fn publish(&mut self, block: BlockId, parent: EntryId, hash: u64) {
        let tokens = self.blocks.tokens(block);
        let Some(entry) = self.index.find(&self.blocks, parent, hash, tokens) else {
            self.blocks[block].entry = self.index.insert(parent, hash, block);
            return;
        };
        self.blocks[block].entry = entry;
        let canonical = self.index.get(entry).block;
        if self.blocks[canonical].refs > 0 && self.quality(block) > self.quality(canonical) {
            self.index.set_block(entry, block);
            let twins = &mut self.index.get_mut(entry).twins;
            twins.push_back(&mut self.blocks, canonical);
        } else if self.blocks[canonical].refs > 0 {
            self.index
                .get_mut(entry)
                .twins
                .push_back(&mut self.blocks, block);
        } else {
            self.cached
                .remove(&mut self.blocks, canonical, self.epochs.done());
            self.index.set_block(entry, block);
            self.free_block(canonical);
        }
    }

    pub(super) fn guard(&mut self, block: BlockId) {
        self.blocks[block].guards += 1;
        self.requeue(block);
    }

    pub(super) fn unguard(&mut self, block: BlockId) {
        self.blocks[block].guards -= 1;
        self.requeue(block);
    }

    /// A holder has not filled the block: it is guarded, and stays at 16 bit.
    pub(super) fn pin(&mut self, block: BlockId) {
        self.blocks[block].pins += 1;
        self.guard(block);
    }

    pub(super) fn unpin(&mut self, block: BlockId) {
        self.blocks[block].pins -= 1;
        self.unguard(block);
    }
}
