//! All blocks: what each owns and what it holds.

use std::ops::{Index, IndexMut};

use crate::{
    BLOCK_TOKENS, BlockId, NO_FRAME, PoolConfig, SUB_BLOCK_TOKENS, epoch::Epoch,
    level_counts::LevelCounts, list::Links, prefix::EntryId, shrink_queue::Queued,
};

/// The token ids of a full block.
pub(crate) type BlockTokens = [u32; BLOCK_TOKENS];

/// Blocks allocated at the start; a pool with more of them allocates as it goes.
const BLOCKS_RESERVED_MAX: u32 = 1 << 16;

/// 128 tokens of one or more sequences.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Sequences that hold the block. None: only the prefix cache keeps it.
    pub(crate) refs: u32,
    /// Times that a holder protects the block: see [`crate::BlockManager::is_protected`].
    pub(crate) protections: u32,
    /// Of them, holders that have not filled it: for these it must stay at 16 bit.
    pub(crate) pins: u32,
    /// Holders by the bits that they ask for: see [`crate::precision::MinBits::class`].
    pub(crate) min_bits_counts: [u32; 4],
    /// Whether it is the first block of its holders.
    pub(crate) is_first: bool,
    /// The most urgent priority of its holders since it was last only cached.
    pub(crate) priority: i32,
    /// When it was sealed, and when it was last cached, by a logical clock.
    pub(crate) sealed_at: u64,
    pub(crate) cached_at: u64,
    /// Lowest nominal bits of anything that it was computed from.
    pub(crate) input_bits: u8,
    /// Lowest nominal bits of its pages, counting a shrink under way as done.
    pub(crate) bits: u8,
    /// The step being planned, or one in flight, shrinks it.
    pub(crate) is_shrinking: bool,
    /// A shrink found pages that cannot be encoded: it keeps its level.
    pub(crate) cannot_shrink: bool,
    /// The queue of blocks to shrink that it is in.
    pub(crate) queued: Queued,
    /// Precision level.
    pub(crate) level: u16,
    /// Frames owned.
    pub(crate) frames: u16,
    /// Frames owned and, once it is trimmed, places of those given back.
    places: u16,
    /// It has given back its windowed frames.
    pub(crate) is_trimmed: bool,
    /// Sequences that hold it in their window.
    pub(crate) viewers: u32,
    /// Since when it is hidden: see [`crate::hidden`]. 0: it is not.
    pub(crate) hidden_at: u64,
    /// Tokens that its writer has memory for.
    pub(crate) filled: u16,
    /// All 128 tokens are committed; nothing is written here any more.
    pub(crate) sealed: bool,
    /// Its entry in the prefix cache, which may name a duplicate of it.
    pub(crate) entry: EntryId,
    /// Last step that may touch the frames after its last holder is gone.
    pub(crate) busy_until: Epoch,
    pub(crate) links: Links,
}

/// All blocks, with their frames and tokens in arrays of their own.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    /// Frames of block `b`: `[b * stride..][..blocks[b].places]`.
    frames: Vec<u32>,
    /// Token ids in the order of the pages.
    tokens: Vec<BlockTokens>,
    unused: Vec<BlockId>,
    stride: usize,
    frames_per_sub_block: u32,
    /// Tokens that open blocks have frames for and no sequence has asked for.
    unused_tokens: u64,
    /// Blocks in use at each level.
    by_level: LevelCounts,
}

impl Blocks {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        let count = config.blocks_max().min(BLOCKS_RESERVED_MAX) as usize;
        let stride = config.block_frames() as usize;
        Self {
            blocks: Vec::with_capacity(count),
            frames: Vec::with_capacity(count.min((1 << 24) / stride) * stride),
            tokens: Vec::with_capacity(count),
            unused: Vec::with_capacity(count),
            stride,
            frames_per_sub_block: config.frames_per_sub_block,
            unused_tokens: 0,
            by_level: LevelCounts::new(config.levels.len()),
        }
    }

    /// Blocks in use at each level.
    pub(crate) fn by_level(&self) -> &LevelCounts {
        &self.by_level
    }

    /// Blocks that own frames.
    pub(crate) fn in_use(&self) -> u32 {
        (self.blocks.len() - self.unused.len()) as u32
    }

    /// Tokens that open blocks have frames for and no sequence has asked for.
    pub(crate) fn unused_tokens(&self) -> u64 {
        self.unused_tokens
    }

    /// A new open block without frames, held once.
    pub(crate) fn add(&mut self) -> BlockId {
        let block = Block {
            refs: 1,
            protections: 0,
            pins: 0,
            min_bits_counts: [0; 4],
            is_first: false,
            priority: i32::MAX,
            sealed_at: 0,
            cached_at: 0,
            input_bits: 16,
            bits: 16,
            is_shrinking: false,
            cannot_shrink: false,
            queued: Queued::No,
            level: 0,
            frames: 0,
            places: 0,
            is_trimmed: false,
            viewers: 0,
            hidden_at: 0,
            filled: 0,
            sealed: false,
            entry: EntryId::NONE,
            busy_until: 0,
            links: Links::NONE,
        };
        self.by_level.add(&block);
        if let Some(id) = self.unused.pop() {
            self[id] = block;
            return id;
        }
        let id = BlockId(u32::try_from(self.blocks.len()).expect("fewer blocks than frames"));
        self.blocks.push(block);
        self.frames.resize(self.frames.len() + self.stride, 0);
        self.tokens.push([0; BLOCK_TOKENS]);
        id
    }

    /// Removes a block whose frames the caller has given back.
    pub(crate) fn remove(&mut self, id: BlockId) {
        self.set_filled(id, 0);
        let frames = u64::from(self[id].frames);
        if !self[id].sealed {
            self.unused_tokens -= self.tokens_in(frames);
        }
        (self[id].frames, self[id].places) = (0, 0);
        self.by_level.remove(&self.blocks[id.0 as usize]);
        self.unused.push(id);
    }

    /// Tokens that fit into `frames` frames of an open block.
    fn tokens_in(&self, frames: u64) -> u64 {
        frames / u64::from(self.frames_per_sub_block) * SUB_BLOCK_TOKENS as u64
    }

    /// The frames of a block, in order; [`NO_FRAME`] where it has given one back.
    pub(crate) fn frames(&self, id: BlockId) -> &[u32] {
        &self.frames[id.0 as usize * self.stride..][..self[id].places as usize]
    }

    /// The frames that a block owns.
    pub(crate) fn owned(&self, id: BlockId) -> impl Iterator<Item = u32> + '_ {
        let frames = self.frames(id).iter().copied();
        frames.filter(|&frame| frame != NO_FRAME)
    }

    /// Takes the frames of a sealed block that `is_windowed` names by their places.
    pub(crate) fn trim(&mut self, id: BlockId, is_windowed: impl Fn(usize) -> bool) -> Vec<u32> {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.sealed && !block.is_trimmed);
        self.by_level.remove(block);
        block.is_trimmed = true;
        self.by_level.add(block);
        let places = &mut self.frames[id.0 as usize * self.stride..][..block.places as usize];
        let windowed = places.iter_mut().enumerate();
        let windowed = windowed.filter(|(index, _)| is_windowed(*index));
        let given: Vec<u32> = windowed
            .map(|(_, frame)| std::mem::replace(frame, NO_FRAME))
            .collect();
        block.frames -= given.len() as u16;
        given
    }

    /// Adds room for `count` frames to an open block, to be filled in by the caller.
    pub(crate) fn extend(&mut self, id: BlockId, count: u32) -> &mut [u32] {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(!block.sealed && block.level == 0);
        let from = block.frames as usize;
        block.frames += count as u16;
        block.places = block.frames;
        self.unused_tokens += self.tokens_in(u64::from(count));
        &mut self.frames[id.0 as usize * self.stride..][from..from + count as usize]
    }

    /// Gives a sealed block another level and other frames, the first of `places`.
    pub(crate) fn move_to(&mut self, id: BlockId, level: u16, frames: &[u32], places: usize) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.sealed);
        self.by_level.remove(block);
        block.level = level;
        self.by_level.add(block);
        (block.frames, block.places) = (frames.len() as u16, places as u16);
        let all = &mut self.frames[id.0 as usize * self.stride..][..places];
        let (owned, given) = all.split_at_mut(frames.len());
        owned.copy_from_slice(frames);
        given.fill(NO_FRAME);
    }

    /// Sets how many tokens of an open block its writer has memory for.
    pub(crate) fn set_filled(&mut self, id: BlockId, filled: usize) {
        let block = &mut self.blocks[id.0 as usize];
        if !block.sealed {
            self.unused_tokens = self.unused_tokens + u64::from(block.filled) - filled as u64;
        }
        block.filled = filled as u16;
    }

    /// Nothing will be written to this full block any more.
    pub(crate) fn seal(&mut self, id: BlockId) {
        debug_assert_eq!(self[id].filled as usize, BLOCK_TOKENS);
        debug_assert_eq!(self[id].frames as usize, self.stride);
        self[id].sealed = true;
    }

    /// The block's token ids; meaningless beyond what is committed.
    pub(crate) fn tokens(&self, id: BlockId) -> &BlockTokens {
        &self.tokens[id.0 as usize]
    }

    pub(crate) fn tokens_mut(&mut self, id: BlockId) -> &mut BlockTokens {
        &mut self.tokens[id.0 as usize]
    }

    /// Copies the first `count` token ids of `from` to `to`.
    pub(crate) fn copy_tokens(&mut self, from: BlockId, to: BlockId, count: usize) {
        let copy = self.tokens[from.0 as usize];
        self.tokens[to.0 as usize][..count].copy_from_slice(&copy[..count]);
    }

    /// Ids ever used, and those of them not in use: for the audit.
    pub(crate) fn slab(&self) -> (u32, &[BlockId]) {
        (self.blocks.len() as u32, &self.unused)
    }
}

impl Index<BlockId> for Blocks {
    type Output = Block;
    fn index(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }
}

impl IndexMut<BlockId> for Blocks {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }
}
