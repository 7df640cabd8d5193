//! The pool's interface, and what its parts share: this module begins and ends blocks, the others
//! grow, commit, share and shrink them.

mod audit;
mod choose;
mod commit;
mod grow;
mod precision;
mod share;
mod shrink;

use std::collections::VecDeque;

use thiserror::Error;

use crate::{
    BLOCK_TOKENS, BlockId, ConfigError, PoolConfig, PrefixCursor, SUB_BLOCK_TOKENS, SeqId, StepId,
    Table, TableDelta, Usage,
    block::Blocks,
    cached::Cached,
    epoch::{Epoch, Epochs},
    frames::FramePool,
    prefix::{EntryId, PrefixIndex},
    pressure::Begun,
    sequence::{Sequences, Terms},
    shrink_queue::{Place, Queues},
};
use shrink::Pending;

pub use precision::{ColdBlock, LiveBlock};
pub use share::{Created, PrefixHit};
pub use shrink::ShrinkJob;

/// A reservation that did not fit; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{missing} more frames are needed than the pool can give now")]
pub struct Short {
    /// Frames needed beyond those available.
    pub missing: u32,
}

/// Owner of every frame of the KV arena.
///
/// A step first does the frame copies and shrinks that were issued while it was planned, then its
/// rows; steps run in the order they begin. A frame is never handed out while a step may touch it.
///
/// Calls that name an unknown sequence, or commit tokens that were not granted, are bugs of the
/// caller and panic with a sentence that says so.
#[derive(Debug)]
pub struct BlockManager {
    config: PoolConfig,
    epochs: Epochs,
    frames: FramePool,
    blocks: Blocks,
    index: PrefixIndex,
    cached: Cached,
    seqs: Sequences,
    deltas: Vec<TableDelta>,
    copies: Vec<(u32, u32)>,
    /// Copies and shrinks that the step being planned has to do.
    issued: usize,
    /// Bytes of the blocks that it transcodes, and of all that were ever to be transcoded.
    issued_bytes: u64,
    shrunk_bytes: u64,
    held_back: u32,
    queues: Queues,
    /// Which shrinking has begun.
    begun: Begun,
    /// Shrinks of the step being planned and of those in flight, by rising epoch.
    pending: VecDeque<Pending>,
    /// Frames that they write.
    pending_frames: u32,
    /// Rises whenever a block moves in the schedule.
    moves: u64,
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
            cached: Cached::new(config.positions.len()),
            seqs: Sequences::new(config.max_blocks_per_seq),
            deltas: Vec::new(),
            copies: Vec::new(),
            issued: 0,
            issued_bytes: 0,
            shrunk_bytes: 0,
            held_back: config.held_back(),
            queues: Queues::default(),
            begun: Begun::default(),
            pending: VecDeque::new(),
            pending_frames: 0,
            moves: 1,
            clock: 0,
            scratch: PrefixCursor::default(),
            config,
        })
    }

    /// The pool's shape.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Frames that growth can take now: free ones and those of evictable cached blocks. Those held
    /// back for shrinking must be left, or come back when the steps in flight retire.
    pub fn available(&self) -> u32 {
        let takeable = self.frames.free() + self.cached.evictable();
        takeable.saturating_sub(self.held_back_now())
    }

    /// Of the frames held back, how many must be free now.
    fn held_back_now(&self) -> u32 {
        let coming = self.frames.retiring() + self.pending_frames;
        self.held_back.saturating_sub(coming)
    }

    /// Bytes of the blocks that steps have transcoded or tried to.
    pub fn shrunk_bytes(&self) -> u64 {
        self.shrunk_bytes
    }

    /// A step was planned and is submitted: until it retires it may touch every frame held now.
    /// Call it when the plan is complete, so that what the plan itself freed is not held up by it.
    /// Step ids rise.
    pub fn begin_step(&mut self, step: StepId) {
        self.epochs.begin(step);
        (self.issued, self.issued_bytes) = (0, 0);
    }

    /// The device is done with a step. Frames become reusable once no step that was in flight
    /// when they were freed is left.
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
        let frames_cached = self.cached.frames();
        let (frames_free, frames_retiring) = (self.frames.free(), self.frames.retiring());
        let frames_shrinking = self.pending_frames;
        let owned = self.config.frames - frames_free - frames_retiring - frames_shrinking;
        let frames_live = owned - frames_cached;
        let sub_block_bytes = u64::from(self.config.frames_per_sub_block) * self.config.frame_bytes;
        let empty = self.blocks.empty_tokens() * sub_block_bytes / SUB_BLOCK_TOKENS as u64;
        Usage {
            frames_total: self.config.frames,
            frames_free,
            frames_retiring,
            frames_live,
            frames_cached,
            frames_shrinking,
            frames_held_back: self.held_back,
            frames_shrinkable: self.queues.live_frames,
            frame_bytes: self.config.frame_bytes,
            bytes_used: u64::from(frames_live + frames_cached) * self.config.frame_bytes - empty,
            bytes_reserved_empty: empty,
            blocks_live: self.blocks.in_use() - self.cached.len(),
            blocks_cached: self.cached.len(),
            blocks_published: self.index.len(),
            sequences: self.seqs.len(),
        }
    }

    /// A new open block of a sequence's row, told to the device.
    fn add_block(&mut self, terms: Terms, index: usize) -> BlockId {
        let block = self.blocks.add();
        let state = &mut self.blocks[block];
        state.claims[terms.bound.class()] += 1;
        (state.class, state.first) = (terms.class, index == 0);
        self.deltas.push(TableDelta::Block { block, position: 0 });
        block
    }

    /// Gives an open block `count` more frames. The caller has made room.
    fn extend_block(&mut self, block: BlockId, count: u32) {
        let from = u32::from(self.blocks[block].frames);
        let places = self.blocks.extend(block, count);
        self.frames.take(places);
        let deltas = places.iter().enumerate().map(|(i, &frame)| {
            let index = from + i as u32;
            TableDelta::Frame {
                block,
                index,
                frame,
            }
        });
        self.deltas.extend(deltas);
    }

    /// One table less names `block`. Without holders a block is cached if it is the only one of its
    /// prefix entry, and freed if not.
    fn drop_ref(&mut self, id: BlockId, terms: Terms) {
        let block = &mut self.blocks[id];
        block.refs -= 1;
        block.claims[terms.bound.class()] -= 1;
        if block.refs > 0 {
            return self.requeue(id);
        }
        block.class = i32::MAX;
        block.busy = block.busy.max(self.epochs.current());
        let Some(entry) = block.entry.some() else {
            return self.free_block(id);
        };
        if self.index.get(entry).block != id {
            self.index.get_mut(entry).twins.remove(&mut self.blocks, id);
            self.free_block(id);
        } else if let Some(twin) = self.best_twin(entry) {
            self.index
                .get_mut(entry)
                .twins
                .remove(&mut self.blocks, twin);
            self.index.set_block(entry, twin);
            self.free_block(id);
        } else {
            self.clock += 1;
            self.blocks[id].age = self.clock;
            self.cached.insert(&mut self.blocks, id, self.epochs.done());
            self.index.touch();
            self.requeue(id);
        }
    }

    /// The twin that serves most requests; of equals the oldest.
    fn best_twin(&self, entry: EntryId) -> Option<BlockId> {
        let mut best: Option<BlockId> = None;
        for twin in self.index.get(entry).twins.iter(&self.blocks) {
            if best.is_none_or(|best| self.quality(twin) > self.quality(best)) {
                best = Some(twin);
            }
        }
        best
    }

    /// The highest bound that a request may bring to be served from a block.
    fn quality(&self, id: BlockId) -> u8 {
        let block = &self.blocks[id];
        block.rung.min(block.provenance)
    }

    /// Gives back a block that neither a table nor the prefix cache names.
    fn free_block(&mut self, id: BlockId) {
        let until = self.blocks[id].busy;
        if until == self.epochs.planned() {
            self.cancel_copies(id);
        }
        let place = std::mem::replace(&mut self.blocks[id].place, Place::Nowhere);
        self.queues.remove(id, place);
        if self.blocks[id].is_shrinking {
            self.abandon_shrink(id);
        }
        self.frames
            .give(self.blocks.frames(id), until, self.epochs.done());
        self.blocks.remove(id);
    }

    /// Takes back the copies to a block that ends before the step that would do them begins; what
    /// was to be copied on from there is copied from where it came from. If nothing else is issued
    /// for that step, nothing has to wait for it.
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

    /// Frees what waited for the steps that have retired.
    fn reclaim(&mut self) {
        let done = self.epochs.done();
        self.frames.reclaim(done);
        if self.cached.cool(done) {
            self.index.touch();
        }
        self.finish_shrinks();
    }

    /// Evicts cached blocks, least recently used first, until `frames` are free. The caller has
    /// checked that there are enough.
    fn evict_until(&mut self, frames: u32) {
        let done = self.epochs.done();
        let mut next = self.cached.oldest();
        while self.frames.free() < frames {
            let id = next.expect("what is evictable is counted");
            if self.blocks[id].busy > done {
                next = crate::list::List::after(&self.blocks, id);
                continue;
            }
            self.evict(id, done);
            next = self.cached.oldest();
        }
    }

    /// Evicts a cached block and what is only reachable through it. Descendants were released
    /// before and have gone already, except those that a step in flight still touches.
    fn evict(&mut self, id: BlockId, done: Epoch) {
        let top = self.blocks[id].entry;
        loop {
            let leaf = self.index.leaf_below(top);
            let block = self.index.get(leaf).block;
            self.index.remove(leaf);
            self.cached.remove(&mut self.blocks, block, done);
            self.free_block(block);
            if leaf == top {
                return;
            }
        }
    }
}

/// Sub-blocks that hold `tokens` tokens, in frames.
fn sub_block_frames(config: &PoolConfig, tokens: usize) -> u32 {
    debug_assert!(tokens <= BLOCK_TOKENS);
    tokens.div_ceil(SUB_BLOCK_TOKENS) as u32 * config.frames_per_sub_block
}

/// Appends, or trades places if `out` is empty: nothing is copied then.
fn drain<T>(from: &mut Vec<T>, out: &mut Vec<T>) {
    if out.is_empty() {
        std::mem::swap(from, out);
    } else {
        out.append(from);
    }
}
