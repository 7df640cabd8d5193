//! The slab of blocks: what each owns and what it holds.

use std::ops::{Index, IndexMut};

use crate::{
    BLOCK_TOKENS, BlockId, PoolConfig, SUB_BLOCK_TOKENS, epoch::Epoch, list::Links,
    prefix::EntryId, shrink_queue::Place,
};

/// The token ids of a full block.
pub(crate) type BlockTokens = [u32; BLOCK_TOKENS];

/// Room set aside at the start; a pool with more blocks than this grows its slab as it goes.
const BLOCKS_RESERVED_MAX: u32 = 1 << 16;

/// 128 tokens of one or more sequences.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Tables that name the block. None: only the prefix cache keeps it.
    pub(crate) refs: u32,
    /// Reasons why the block must keep its width: see [`crate::BlockManager::is_protected`].
    pub(crate) guards: u32,
    /// Of them, holders that have not filled it: it must stay at 16 bit for them.
    pub(crate) pins: u32,
    /// Holders by the width that they insist on: see [`crate::schedule::Bound::class`].
    pub(crate) claims: [u32; 4],
    /// Whether it is the first block of whoever holds it.
    pub(crate) first: bool,
    /// The most urgent class of those who have held it since it was last only cached.
    pub(crate) class: i32,
    /// When it was sealed, and when it was last cached, by a logical clock.
    pub(crate) birth: u64,
    pub(crate) age: u64,
    /// Lowest nominal bits that anything it was computed from was read at.
    pub(crate) provenance: u8,
    /// Lowest nominal bits of its pages, those of a shrink under way included.
    pub(crate) rung: u8,
    /// A step in the making or in flight transcodes it.
    pub(crate) is_shrinking: bool,
    /// A shrink found pages that cannot be encoded: it stays where it is.
    pub(crate) is_stuck: bool,
    /// Where the planner finds it.
    pub(crate) place: Place,
    /// Place in the shrink schedule.
    pub(crate) position: u16,
    /// Frames owned.
    pub(crate) frames: u16,
    /// Tokens whose memory was granted to the block's writer.
    pub(crate) filled: u16,
    /// All 128 tokens are committed; nothing is written here any more.
    pub(crate) sealed: bool,
    /// Entry of the prefix cache that this block, or its twin, stands for.
    pub(crate) entry: EntryId,
    /// Last step that may touch the frames, as far as the holders do not know it.
    pub(crate) busy: Epoch,
    pub(crate) links: Links,
}

/// All blocks, with their frames and tokens in arrays of their own.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    /// Frames of block `b`: `[b * stride..][..blocks[b].frames]`.
    frames: Vec<u32>,
    /// Token ids as they lie in the pages.
    tokens: Vec<BlockTokens>,
    unused: Vec<BlockId>,
    stride: usize,
    frames_per_sub_block: u32,
    /// Token places of open blocks that were granted to nobody.
    empty: u64,
    /// Blocks in use at each position.
    standing: Vec<u32>,
}

impl Blocks {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        let room = config.blocks_max().min(BLOCKS_RESERVED_MAX) as usize;
        let stride = config.block_frames() as usize;
        Self {
            blocks: Vec::with_capacity(room),
            frames: Vec::with_capacity(room.min((1 << 24) / stride) * stride),
            tokens: Vec::with_capacity(room),
            unused: Vec::with_capacity(room),
            stride,
            frames_per_sub_block: config.frames_per_sub_block,
            empty: 0,
            standing: vec![0; config.positions.len()],
        }
    }

    /// Blocks in use at each position.
    pub(crate) fn standing(&self) -> &[u32] {
        &self.standing
    }

    /// Blocks that own frames.
    pub(crate) fn in_use(&self) -> u32 {
        (self.blocks.len() - self.unused.len()) as u32
    }

    /// Token places reserved in open blocks and granted to nobody.
    pub(crate) fn empty_tokens(&self) -> u64 {
        self.empty
    }

    /// A new open block without frames, held once.
    pub(crate) fn add(&mut self) -> BlockId {
        let block = Block {
            refs: 1,
            guards: 0,
            pins: 0,
            claims: [0; 4],
            first: false,
            class: i32::MAX,
            birth: 0,
            age: 0,
            provenance: 16,
            rung: 16,
            is_shrinking: false,
            is_stuck: false,
            place: Place::Nowhere,
            position: 0,
            frames: 0,
            filled: 0,
            sealed: false,
            entry: EntryId::NONE,
            busy: 0,
            links: Links::NONE,
        };
        self.standing[0] += 1;
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

    /// Forgets a block; the caller has taken care of its frames.
    pub(crate) fn remove(&mut self, id: BlockId) {
        self.set_filled(id, 0);
        let frames = u64::from(self[id].frames);
        if !self[id].sealed {
            self.empty -= self.places(frames);
        }
        self[id].frames = 0;
        let position = usize::from(self[id].position);
        self.standing[position] -= 1;
        self.unused.push(id);
    }

    /// Tokens that fit into `frames` frames of an open block.
    fn places(&self, frames: u64) -> u64 {
        frames / u64::from(self.frames_per_sub_block) * SUB_BLOCK_TOKENS as u64
    }

    /// The frames of a block, in order.
    pub(crate) fn frames(&self, id: BlockId) -> &[u32] {
        &self.frames[id.0 as usize * self.stride..][..self[id].frames as usize]
    }

    /// Adds `count` frames to an open block and returns their places, to be filled in.
    pub(crate) fn extend(&mut self, id: BlockId, count: u32) -> &mut [u32] {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(!block.sealed && block.position == 0);
        let from = block.frames as usize;
        block.frames += count as u16;
        self.empty += self.places(u64::from(count));
        &mut self.frames[id.0 as usize * self.stride..][from..from + count as usize]
    }

    /// Moves a sealed block to another position and other frames.
    pub(crate) fn move_to(&mut self, id: BlockId, position: u16, frames: &[u32]) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.sealed);
        self.standing[usize::from(block.position)] -= 1;
        self.standing[usize::from(position)] += 1;
        block.position = position;
        block.frames = frames.len() as u16;
        self.frames[id.0 as usize * self.stride..][..frames.len()].copy_from_slice(frames);
    }

    /// Tells how many tokens of an open block its writer was granted.
    pub(crate) fn set_filled(&mut self, id: BlockId, filled: usize) {
        let block = &mut self.blocks[id.0 as usize];
        if !block.sealed {
            self.empty = self.empty + u64::from(block.filled) - filled as u64;
        }
        block.filled = filled as u16;
    }

    /// Nothing will be written to this full block any more.
    pub(crate) fn seal(&mut self, id: BlockId) {
        debug_assert_eq!(self[id].filled as usize, BLOCK_TOKENS);
        debug_assert_eq!(self[id].frames as usize, self.stride);
        self[id].sealed = true;
    }

    /// The token ids that lie in the block's pages; meaningless beyond what is committed.
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
