//! Beginning and ending sequences, which share blocks.

use super::BlockManager;
use crate::{
    BLOCK_TOKENS, BlockId, PrefixCursor, SeqId, SeqOptions, Slot, TableDelta,
    precision::MinBits,
    prefix::{EntryId, Prefixes},
    sequence::Sequence,
    states::KeptState,
};

/// What the prefix cache holds of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefixHit {
    /// Tokens that need not be computed, a multiple of 128.
    pub tokens: usize,
    /// Tokens whose blocks are there, at least as many. Where sequences have states, none may be
    /// kept behind the last of them.
    pub alike: usize,
    /// Frames that sharing takes out of [`BlockManager::available`], because they are only cached.
    pub frames_revived: u32,
}

/// A new sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created {
    /// Its row of the device's block tables.
    pub slot: Slot,
    /// Tokens from the prefix cache, which count as committed.
    pub cached_tokens: usize,
    /// See [`PrefixHit::alike`].
    pub alike_tokens: usize,
    /// Where the state behind the cached tokens lies, which the sequence begins with.
    pub state: Option<u32>,
}

impl BlockManager {
    /// The longest prefix of `tokens` in the prefix cache: whole blocks, at most `max_tokens`
    /// tokens. Changes nothing. Pass `prompt_len - 1` so that at least one token is left to
    /// compute. Hashes each block it finds; to look the same prompt up repeatedly, keep a cursor
    /// for [`lookup_from`](Self::lookup_from).
    pub fn lookup(&self, tokens: &[u32], max_tokens: usize) -> PrefixHit {
        let cursor = &mut PrefixCursor::default();
        self.lookup_from(cursor, tokens, max_tokens, MinBits::ANY)
    }

    /// [`lookup`](Self::lookup) that continues from what `cursor` remembers of the same prompt.
    /// Finds only blocks that are not below `min_bits` and were computed from nothing below it.
    /// Cheap while the prefix cache has not changed.
    pub fn lookup_from(
        &self,
        cursor: &mut PrefixCursor,
        tokens: &[u32],
        max_tokens: usize,
        min_bits: MinBits,
    ) -> PrefixHit {
        let prefixes = Prefixes {
            index: &self.index,
            blocks: &self.blocks,
            config: &self.config,
            done: self.epochs.done(),
        };
        cursor.seek(prefixes, tokens, max_tokens, min_bits)
    }

    /// Starts a sequence with what [`lookup`](Self::lookup) finds for the same arguments.
    pub fn create(&mut self, seq: SeqId, tokens: &[u32], max_tokens: usize) -> Created {
        let mut cursor = std::mem::take(&mut self.scratch);
        cursor.clear();
        let created = self.create_from(seq, &mut cursor, tokens, max_tokens, SeqOptions::default());
        self.scratch = cursor;
        created
    }

    /// [`create`](Self::create) that continues from what `cursor` remembers of the same prompt.
    pub fn create_from(
        &mut self,
        seq: SeqId,
        cursor: &mut PrefixCursor,
        tokens: &[u32],
        max_tokens: usize,
        options: SeqOptions,
    ) -> Created {
        let hit = self.lookup_from(cursor, tokens, max_tokens, options.min_bits);
        let last = cursor.entries().last().unwrap_or(EntryId::NONE);
        let slot = self.seqs.insert(seq, self.index.start_hash(last), options);
        let (done, mut lowest) = (self.epochs.done(), 16);
        for entry in cursor.entries() {
            let block = self.index.get(entry).block;
            if self.blocks[block].refs == 0 {
                self.cached.remove(&mut self.blocks, block, done);
                self.index.touch();
            }
            lowest = lowest.min(self.blocks[block].input_bits);
            self.attach(slot, block);
        }
        let touched = last.some();
        let state = touched.and_then(|last| self.states.touch(&mut self.index, last));
        let row = self.seqs.at_mut(slot);
        (row.committed, row.allocated) = (hit.tokens, hit.tokens);
        row.read.lowest = state.map_or(lowest, |state| lowest.min(state.bits));
        self.view_row(slot);
        self.protect_row(slot);
        Created {
            slot,
            cached_tokens: hit.tokens,
            alike_tokens: hit.alike,
            state: state.map(|state| state.slot),
        }
    }

    /// A slot for the state that a sequence has come to, to be kept if its blocks are
    /// ([`keep_state`](Self::keep_state)). `None`: there are no slots.
    pub fn take_state(&mut self) -> Option<u32> {
        self.states.take(&mut self.index)
    }

    /// Slots that were taken, and neither kept nor given back.
    pub fn states_taken(&self) -> usize {
        let slots = self.config.states.map_or(0, |slots| slots.count as usize);
        slots - self.states.unused().len() - self.states.kept().len()
    }

    /// Gives back a slot that was taken, and not kept.
    pub fn give_state(&mut self, slot: u32) {
        self.states.give(slot);
    }

    /// Keeps the state in `slot`, which was taken where the committed tokens of a sequence end,
    /// whole blocks of them. `None`: it is not needed, and the slot has been given back.
    pub fn keep_state(&mut self, seq: SeqId, slot: u32) -> Option<KeptState> {
        let row = self.seqs.get(seq);
        debug_assert!(row.committed.is_multiple_of(BLOCK_TOKENS));
        let bits = row.read.lowest;
        let last = row
            .full_blocks()
            .checked_sub(1)
            .map(|last| row.blocks[last]);
        let entry = last.and_then(|block| self.blocks[block].entry.some());
        match entry {
            Some(entry) => self.states.keep(&mut self.index, entry, (slot, bits)),
            None => {
                self.states.give(slot);
                None
            }
        }
    }

    /// Gives up a state that was kept, unless it has been given up or used since.
    pub fn forget_state(&mut self, state: KeptState) {
        self.states.forget(&mut self.index, state);
    }

    /// Gives up all states that are kept: what they are is not known, since a step failed.
    pub fn forget_states(&mut self) {
        self.states.forget_all(&mut self.index);
    }

    /// Starts `child` with every committed token of `parent`. All blocks are shared, and stay at 16
    /// bit for both where they do for the parent ([`keep_recent`](Self::keep_recent)). A sequence
    /// that appends to a shared open block copies it first ([`drain_copies`](Self::drain_copies));
    /// the last holder keeps it.
    pub fn fork(&mut self, parent: SeqId, child: SeqId) -> Slot {
        let from = self.seqs.slot(parent);
        let Sequence {
            committed,
            hash,
            recent_from,
            options,
            read,
            ..
        } = *self.seqs.at(from);
        let slot = self.seqs.insert(child, hash, options);
        for index in 0..committed.div_ceil(BLOCK_TOKENS) {
            self.attach(slot, self.seqs.at(from).blocks[index]);
        }
        let row = self.seqs.at_mut(slot);
        (row.committed, row.allocated, row.read) = (committed, committed, read);
        row.recent_from = recent_from;
        self.view_row(slot);
        self.protect_row(slot);
        for index in 0..self.seqs.at(slot).recent_blocks().len() {
            self.pin(self.seqs.at(slot).recent_blocks()[index]);
        }
        slot
    }

    /// Ends a sequence that has finished, or was cancelled or preempted. Published blocks that no
    /// other sequence holds stay cached. The others are freed once every step in flight has
    /// retired.
    pub fn release(&mut self, seq: SeqId) {
        let slot = self.seqs.slot(seq);
        let [first, last, partial] = protected_blocks(self.seqs.at(slot));
        for block in [first, last].into_iter().flatten() {
            self.unprotect(block);
        }
        if let Some(block) = partial {
            self.unpin(block);
        }
        for index in 0..self.seqs.at(slot).recent_blocks().len() {
            self.unpin(self.seqs.at(slot).recent_blocks()[index]);
        }
        for index in self.seqs.at(slot).window_from..self.seqs.at(slot).blocks.len() {
            self.unview(self.seqs.at(slot).blocks[index]);
        }
        let options = self.seqs.at(slot).options;
        // Last block first, so that eviction takes children before their parents.
        for index in (0..self.seqs.at(slot).blocks.len()).rev() {
            self.drop_ref(self.seqs.at(slot).blocks[index], options);
        }
        self.seqs.remove(slot);
    }

    /// Frames that no other sequence holds, which releasing this one would free or make evictable,
    /// some of them only when the steps in flight retire.
    pub fn releasable_frames(&self, seq: SeqId) -> u32 {
        let blocks = self.seqs.get(seq).blocks.iter();
        blocks
            .filter(|&&id| self.blocks[id].refs == 1)
            .map(|&id| self.held_frames(id))
            .sum()
    }

    /// Tokens of a sequence in full blocks that others hold, too.
    pub fn shared_tokens(&self, seq: SeqId) -> usize {
        let row = self.seqs.get(seq);
        let full = row.blocks[..row.full_blocks()].iter();
        full.filter(|&&id| self.blocks[id].refs > 1).count() * BLOCK_TOKENS
    }

    /// Appends an existing block to a sequence.
    fn attach(&mut self, slot: Slot, block: BlockId) {
        let row = self.seqs.at_mut(slot);
        let state = &mut self.blocks[block];
        state.refs += 1;
        state.min_bits_counts[row.options.min_bits.class()] += 1;
        state.priority = state.priority.min(row.options.priority);
        let index = row.blocks.len() as u32;
        row.blocks.push(block);
        self.deltas.push(TableDelta::Row { slot, index, block });
        self.requeue(block);
    }

    /// Counts a sequence that has just attached all its blocks among the viewers of those in its
    /// window.
    fn view_row(&mut self, slot: Slot) {
        let row = self.seqs.at(slot);
        let (from, blocks) = (self.config.first_visible(row.committed), row.blocks.len());
        self.seqs.at_mut(slot).window_from = from;
        for index in 0..blocks {
            let block = self.seqs.at(slot).blocks[index];
            match index < from {
                true => self.rehide(block),
                false => self.view(block),
            }
        }
    }

    fn protect_row(&mut self, slot: Slot) {
        let [first, last, partial] = protected_blocks(self.seqs.at(slot));
        for block in [first, last].into_iter().flatten() {
            self.protect(block);
        }
        if let Some(block) = partial {
            self.pin(block);
        }
    }
}

/// The blocks that a sequence protects: its first and its last full block, and the partial one,
/// which it reads at 16 bit even where another holder has sealed it.
pub(super) fn protected_blocks(row: &Sequence) -> [Option<BlockId>; 3] {
    let full = &row.blocks[..row.full_blocks()];
    [
        full.first().copied(),
        full.last().copied(),
        row.partial_block(),
    ]
}
