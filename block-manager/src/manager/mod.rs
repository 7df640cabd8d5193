//! The pool's interface. This module creates, frees and evicts blocks; its parts grow, commit,
//! share and shrink them.

mod audit;
mod choose;
mod commit;
mod grow;
mod precision;
mod share;
mod shrink;
mod window;

use std::collections::VecDeque;

use thiserror::Error;

use crate::{
    BLOCK_TOKENS, BlockId, ConfigError, PoolConfig, PrefixCursor, SUB_BLOCK_TOKENS, SeqId, StepId,
    Table, TableDelta, Usage,
    block::Blocks,
    cached::Cached,
    epoch::{Epoch, Epochs},
    frames::FramePool,
    hidden::Hidden,
    prefix::{EntryId, PrefixIndex},
    pressure::Begun,
    sequence::{SeqOptions, Sequences},
    shrink_queue::{Queued, ShrinkQueues},
    states::States,
};
use shrink::PendingShrink;

pub use precision::{CachedBlock, LiveBlock};
pub use share::{Created, PrefixHit};
pub use shrink::ShrinkJob;

/// The pool has too few frames; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the KV pool is short of {missing} frames")]
pub struct OutOfFrames {
    /// Frames needed beyond those available.
    pub missing: u32,
}

/// Owner of every frame of the KV arena.
///
/// A step does the frame copies and shrinks that were issued while it was planned, then computes
/// its tokens. Steps run in the order they begin. A frame is never handed out while a step may
/// touch it.
///
/// Calls with an unknown sequence, or commits of tokens without memory, are bugs of the caller and
/// panic.
#[derive(Debug)]
pub struct BlockManager {
    config: PoolConfig,
    epochs: Epochs,
    frames: FramePool,
    blocks: Blocks,
    index: PrefixIndex,
    cached: Cached,
    hidden: Hidden,
    states: States,
    seqs: Sequences,
    deltas: Vec<TableDelta>,
    copies: Vec<(u32, u32)>,
    /// Copies and shrinks of the step being planned.
    issued: usize,
    /// Bytes of the blocks that it shrinks, and of all blocks that were ever shrunk.
    issued_bytes: u64,
    shrunk_bytes: u64,
    shrink_reserve: u32,
    queues: ShrinkQueues,
    /// Which shrinking has begun.
    begun: Begun,
    /// Shrinks of the step being planned and of those in flight, by rising epoch.
    pending: VecDeque<PendingShrink>,
    /// Frames that they write.
    pending_frames: u32,
    /// Rises whenever a block changes its level.
    level_changes: u64,
    clock: u64,
    /// For lookups whose caller keeps no cursor.
    scratch: PrefixCursor,
}

impl BlockManager {
    /// A pool with every frame free.
    pub fn new(config: PoolConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            epochs: Epochs::default(),
            frames: FramePool::new(config.frames),
            blocks: Blocks::new(&config),
            index: PrefixIndex::new(config.full_blocks_max(), config.hash_key),
            cached: Cached::new(config.levels.len()),
            hidden: Hidden::new(config.levels.len()),
            states: States::new(config.states),
            seqs: Sequences::new(config.max_blocks_per_seq),
            deltas: Vec::new(),
            copies: Vec::new(),
            issued: 0,
            issued_bytes: 0,
            shrunk_bytes: 0,
            shrink_reserve: config.shrink_reserve(),
            queues: ShrinkQueues::default(),
            begun: Begun::default(),
            pending: VecDeque::new(),
            pending_frames: 0,
            level_changes: 1,
            clock: 0,
            scratch: PrefixCursor::default(),
            config,
        })
    }

    /// The pool's shape.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Frames that sequences can take now: free ones, those of evictable cached blocks and hidden
    /// ones, without the shrink reserve. Frames that come free when steps retire count for the
    /// reserve.
    pub fn available(&self) -> u32 {
        let takeable = self.frames.free() + self.evictable();
        takeable.saturating_sub(self.reserve_needed_now())
    }

    /// Frames of cached blocks, and hidden ones, that can be freed at once.
    fn evictable(&self) -> u32 {
        self.cached.frames().idle() + self.hidden.windowed().idle()
    }

    /// Frames of the shrink reserve that must be free now.
    fn reserve_needed_now(&self) -> u32 {
        let coming = self.frames.retiring() + self.pending_frames;
        self.shrink_reserve.saturating_sub(coming)
    }

    /// Bytes of the blocks that steps have shrunk or tried to, as they were before.
    pub fn shrunk_bytes(&self) -> u64 {
        self.shrunk_bytes
    }

    /// Begins a step: until it retires it may touch every frame owned now. Call it when the plan is
    /// complete, so that frames which planning freed do not wait for the step. Step ids rise.
    pub fn begin_step(&mut self, step: StepId) {
        self.epochs.begin(step);
        (self.issued, self.issued_bytes) = (0, 0);
    }

    /// The device is done with a step. Frames become free once every step has retired that was in
    /// flight when they were given back.
    pub fn retire_step(&mut self, step: StepId) {
        self.epochs.retire(step);
        self.reclaim();
    }

    /// The blocks of a sequence.
    pub fn table(&self, seq: SeqId) -> Table<'_> {
        Table {
            blocks: &self.blocks,
            ids: &self.seqs.get(seq).blocks,
        }
    }

    /// Whether the sequence is alive.
    pub fn contains(&self, seq: SeqId) -> bool {
        self.seqs.contains(seq)
    }

    /// Tokens of a sequence that are in the KV cache.
    pub fn committed(&self, seq: SeqId) -> usize {
        self.seqs.get(seq).committed
    }

    /// Moves the table changes since the last call to the end of `out`.
    pub fn drain_deltas(&mut self, out: &mut Vec<TableDelta>) {
        drain(&mut self.deltas, out);
    }

    /// Moves the frame copies `(source, destination)` since the last call to the end of `out`.
    /// The next step does them first. Drain when the plan is complete and submit them with it.
    pub fn drain_copies(&mut self, out: &mut Vec<(u32, u32)>) {
        drain(&mut self.copies, out);
    }

    /// How the pool is used now.
    pub fn usage(&self) -> Usage {
        let frames_cached = self.cached.frames().frames();
        let frames_hidden = self.hidden.windowed().frames();
        let (frames_free, frames_retiring) = (self.frames.free(), self.frames.retiring());
        let frames_shrinking = self.pending_frames;
        let owned = self.config.frames - frames_free - frames_retiring - frames_shrinking;
        let frames_live = owned - frames_cached - frames_hidden;
        let sub_block_bytes = u64::from(self.config.frames_per_sub_block) * self.config.frame_bytes;
        let empty = self.blocks.unused_tokens() * sub_block_bytes / SUB_BLOCK_TOKENS as u64;
        Usage {
            frames_total: self.config.frames,
            frames_free,
            frames_retiring,
            frames_live,
            frames_hidden,
            frames_cached,
            frames_shrinking,
            frames_reserve: self.shrink_reserve,
            frames_shrinkable: self.queues.live_frames,
            frame_bytes: self.config.frame_bytes,
            bytes_used: u64::from(owned) * self.config.frame_bytes - empty,
            bytes_reserved_empty: empty,
            blocks_live: self.blocks.in_use() - self.cached.len(),
            blocks_cached: self.cached.len(),
            blocks_published: self.index.len(),
            sequences: self.seqs.len(),
        }
    }

    /// A new open block of a sequence, without frames.
    fn add_block(&mut self, options: SeqOptions, index: usize) -> BlockId {
        let block = self.blocks.add();
        let state = &mut self.blocks[block];
        state.min_bits_counts[options.min_bits.class()] += 1;
        (state.priority, state.is_first) = (options.priority, index == 0);
        state.viewers = 1;
        self.deltas.push(TableDelta::Block { block, level: 0 });
        block
    }

    /// Gives an open block `count` more frames, which the caller has made sure are free.
    fn extend_block(&mut self, block: BlockId, count: u32) {
        let from = u32::from(self.blocks[block].frames);
        let frames = self.blocks.extend(block, count);
        self.frames.take(frames);
        let deltas = frames.iter().enumerate().map(|(i, &frame)| {
            let index = from + i as u32;
            TableDelta::Frame {
                block,
                index,
                frame,
            }
        });
        self.deltas.extend(deltas);
    }

    /// A sequence no longer holds a block. Without holders a block is cached if its prefix entry
    /// has no other, and freed otherwise.
    fn drop_ref(&mut self, id: BlockId, options: SeqOptions) {
        let block = &mut self.blocks[id];
        block.refs -= 1;
        block.min_bits_counts[options.min_bits.class()] -= 1;
        if block.refs > 0 {
            self.rehide(id);
            return self.requeue(id);
        }
        self.unhide(id);
        let block = &mut self.blocks[id];
        block.priority = i32::MAX;
        block.busy_until = block.busy_until.max(self.epochs.current());
        let Some(entry) = block.entry.some() else {
            return self.free_block(id);
        };
        if self.index.get(entry).block != id {
            self.index
                .get_mut(entry)
                .duplicates
                .remove(&mut self.blocks, id);
            self.free_block(id);
        } else if let Some(duplicate) = self.best_duplicate(entry) {
            self.index
                .get_mut(entry)
                .duplicates
                .remove(&mut self.blocks, duplicate);
            self.index.set_block(entry, duplicate);
            self.free_block(id);
        } else {
            self.clock += 1;
            self.blocks[id].cached_at = self.clock;
            self.cached.insert(&mut self.blocks, id, self.epochs.done());
            self.index.touch();
            self.requeue(id);
        }
    }

    /// The duplicate of the highest [`worth`](Self::worth); of equals the oldest.
    fn best_duplicate(&self, entry: EntryId) -> Option<BlockId> {
        let mut best: Option<BlockId> = None;
        for duplicate in self.index.get(entry).duplicates.iter(&self.blocks) {
            if best.is_none_or(|best| self.worth(duplicate) > self.worth(best)) {
                best = Some(duplicate);
            }
        }
        best
    }

    /// How much of what later prompts may ask for a block can serve: the highest `min_kv_bits` of a
    /// request, then whether prompts may end within a window's length behind it.
    fn worth(&self, id: BlockId) -> (u8, bool) {
        let block = &self.blocks[id];
        (block.bits.min(block.input_bits), !block.is_trimmed)
    }

    /// Frees a block that neither a sequence nor the prefix cache holds.
    fn free_block(&mut self, id: BlockId) {
        let until = self.blocks[id].busy_until;
        if until == self.epochs.planned() {
            self.cancel_copies(id);
        }
        let queued = std::mem::replace(&mut self.blocks[id].queued, Queued::No);
        self.queues.remove(id, queued);
        if self.blocks[id].is_shrinking {
            self.abandon_shrink(id);
        }
        self.give_frames_of(id, until);
        self.blocks.remove(id);
    }

    /// Gives back all frames of a block.
    fn give_frames_of(&mut self, id: BlockId, until: Epoch) {
        let done = self.epochs.done();
        match self.blocks[id].is_trimmed {
            false => self.frames.give(self.blocks.frames(id), until, done),
            true => {
                let owned: Vec<u32> = self.blocks.owned(id).collect();
                self.frames.give(&owned, until, done);
            }
        }
    }

    /// Cancels the copies to a block that is freed before the step that would do them begins.
    /// Copies from that block read its source instead. If nothing else is issued for the step,
    /// nothing has to wait for it.
    fn cancel_copies(&mut self, id: BlockId) {
        let (frames, before) = (self.blocks.frames(id), self.copies.len());
        for at in 0..before {
            let (source, copy) = self.copies[at];
            if frames.contains(&copy) {
                let onward = self.copies[at..]
                    .iter_mut()
                    .filter(|(from, _)| *from == copy);
                onward.for_each(|(from, _)| *from = source);
            }
        }
        self.copies.retain(|(_, copy)| !frames.contains(copy));
        let cancelled = before - self.copies.len();
        self.issued -= cancelled;
        if cancelled > 0 && self.issued == 0 {
            self.epochs.skip();
            self.reclaim();
        }
    }

    /// Frees the frames that waited for the steps that have retired.
    fn reclaim(&mut self) {
        let done = self.epochs.done();
        self.frames.reclaim(done);
        let (cached, hidden) = (self.cached.retire(done), self.hidden.retire(done));
        if cached || hidden {
            self.index.touch();
        }
        self.finish_shrinks();
    }

    /// Evicts cached blocks and trims hidden ones, in one order of age, until `frames` are free.
    /// The caller has checked that there are enough.
    fn evict_until(&mut self, frames: u32) {
        let done = self.epochs.done();
        while self.frames.free() < frames {
            let is_idle = |id: &BlockId| self.blocks[*id].busy_until <= done;
            let cached = self.cached.iter(&self.blocks).find(is_idle);
            let hidden = self.hidden.iter().find(|(_, id)| is_idle(id));
            match (cached, hidden) {
                (Some(id), None) => self.evict(id, done),
                (Some(id), Some((at, _))) if self.blocks[id].cached_at < at => {
                    self.evict(id, done);
                }
                (_, Some((_, id))) => self.trim(id),
                (None, None) => unreachable!("what is evictable is counted"),
            }
        }
    }

    /// Evicts a cached block and its descendants, which a prompt can no longer reach. Descendants
    /// were released before it, so most are gone already; a step in flight may still touch the
    /// others.
    fn evict(&mut self, id: BlockId, done: Epoch) {
        let top = self.blocks[id].entry;
        loop {
            let leaf = self.index.leaf_below(top);
            let block = self.index.get(leaf).block;
            self.states.drop_entry(&self.index, leaf);
            self.index.remove(leaf);
            self.cached.remove(&mut self.blocks, block, done);
            self.free_block(block);
            if leaf == top {
                return;
            }
        }
    }
}

/// Frames of the sub-blocks that hold `tokens` tokens.
fn sub_block_frames(config: &PoolConfig, tokens: usize) -> u32 {
    debug_assert!(tokens <= BLOCK_TOKENS);
    tokens.div_ceil(SUB_BLOCK_TOKENS) as u32 * config.frames_per_sub_block
}

/// Appends to `out`, or swaps if it is empty, so that nothing is copied.
fn drain<T>(from: &mut Vec<T>, out: &mut Vec<T>) {
    if out.is_empty() {
        std::mem::swap(from, out);
    } else {
        out.append(from);
    }
}
