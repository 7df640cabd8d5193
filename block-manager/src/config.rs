//! The shape of the pool, checked once.

use thiserror::Error;

use crate::{
    BLOCK_TOKENS, SUB_BLOCK_TOKENS, SUB_BLOCKS,
    precision::{LevelTable, MinBits},
};

/// Shape of the pool. All counts are in frames unless a name says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Frames in the arena; frame ids are `0..frames`.
    pub frames: u32,
    /// Bytes of one frame.
    pub frame_bytes: u64,
    /// Frames of one 16-token sub-block at 16 bit.
    pub frames_per_sub_block: u32,
    /// What a sealed block takes at each precision level. Level 0 is 16 bit:
    /// `8 * frames_per_sub_block` frames.
    pub levels: LevelTable,
    /// Lowest bits of the last sealed block of a sequence.
    pub protected: MinBits,
    /// Lowest bits of the first one, at least those of `protected`.
    pub sink: MinBits,
    /// Whether sealed blocks are published for later prompts to share.
    pub prefix_cache: bool,
    /// Longest sequence, in blocks.
    pub max_blocks_per_seq: u32,
    /// Key of the prefix cache's hash. Choose it at random, so that nobody can prepare prompts that
    /// collide. It affects how fast a lookup is, never what it finds.
    pub hash_key: u64,
}

/// Why a [`PoolConfig`] is not usable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A count that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// Name of the field of [`PoolConfig`].
        field: &'static str,
    },
    /// The first precision level is not the 16-bit block.
    #[error(
        "precision level 0 must be the 16-bit block, {expected} frames \
         (8 sub-blocks of frames_per_sub_block), but is {found}"
    )]
    LevelZero {
        /// `8 * frames_per_sub_block`.
        expected: u32,
        /// What it is.
        found: u32,
    },
    /// A level that blocks shrink to takes more frames than the 16-bit block, or none.
    #[error(
        "precision level {level} is {frames} frames: a shrunk block takes at least 1 frame \
         and at most the {block} of a 16-bit one"
    )]
    LevelFrames {
        /// The level.
        level: usize,
        /// Frames at that level.
        frames: u32,
        /// Frames of the 16-bit block.
        block: u32,
    },
    /// The first block may shrink further than the last.
    #[error(
        "the first sealed block of a sequence may shrink to {sink} bits and the last one to \
         {protected}, but a block may be both: let the first shrink no further than the last"
    )]
    Sink {
        /// Bits of the first.
        sink: u8,
        /// Bits of the last.
        protected: u8,
    },
    /// One block and the shrink reserve do not fit.
    #[error(
        "the KV memory is {frames} frames of {frame_bytes} bytes, but one block of 128 tokens \
         takes {block}, and the reserve for shrinking {shrink_reserve}: \
         give it at least {bytes_min} bytes"
    )]
    TooSmall {
        /// Frames in the arena.
        frames: u32,
        /// Bytes of one frame.
        frame_bytes: u64,
        /// Frames of one 16-bit block.
        block: u32,
        /// Frames of the shrink reserve.
        shrink_reserve: u32,
        /// Smallest arena that works, in bytes.
        bytes_min: u64,
    },
    /// A number is beyond what the tables can hold.
    #[error("{field} is {value}, more than the {max} that block tables can attach")]
    TooLarge {
        /// Name of the field of [`PoolConfig`].
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// What is possible.
        max: u64,
    },
}

impl PoolConfig {
    /// Frames of one 16-bit block.
    pub fn block_frames(&self) -> u32 {
        self.frames_per_sub_block * SUB_BLOCKS as u32
    }

    /// A pool whose blocks stay at 16 bit, with the prefix cache on.
    pub fn whole(frames: u32, frame_bytes: u64, frames_per_sub_block: u32) -> Self {
        Self {
            frames,
            frame_bytes,
            frames_per_sub_block,
            levels: LevelTable::whole(frames_per_sub_block * SUB_BLOCKS as u32),
            protected: MinBits(8),
            sink: MinBits(8),
            prefix_cache: true,
            max_blocks_per_seq: 1024,
            hash_key: 0,
        }
    }

    /// Frames of a sealed block at a precision level.
    pub fn level_frames(&self, level: u16) -> u32 {
        self.levels.level(level).size.frames
    }

    /// Whether blocks can shrink at all.
    pub fn shrinks(&self) -> bool {
        self.levels.len() > 1
    }

    /// The shrink reserve: frames that sequences must leave free, so that a full pool can still
    /// shrink a block. As many as the largest shrunk block takes; zero if blocks never shrink.
    pub fn shrink_reserve(&self) -> u32 {
        self.levels.largest_target()
    }

    /// Most frames that a sequence of up to `tokens` tokens takes with all blocks at the floor of
    /// `min_bits`: the first and the last sealed block at their protected bits, the open block and
    /// up to `recent_blocks` that [`keep_recent`](crate::BlockManager::keep_recent) keeps at 16
    /// bit, those between at the floor. The peak may be just before the last block was sealed.
    pub fn floor_frames(&self, tokens: u64, min_bits: MinBits, recent_blocks: u32) -> u64 {
        let at = |min_bits| u64::from(self.level_frames(self.levels.floor(min_bits)));
        let (first, last) = (
            at(min_bits.max(self.sink)),
            at(min_bits.max(self.protected)),
        );
        let middle = at(min_bits);
        let shrunk = |blocks: u64| match blocks {
            0 => 0,
            1 => first,
            _ => first + last + middle * (blocks - 2),
        };
        let sealed = |blocks: u64| {
            let recent = blocks.min(recent_blocks.into());
            let all_at_16_bit = blocks * u64::from(self.block_frames());
            let most = shrunk(blocks) + recent * u64::from(self.block_frames());
            most.min(all_at_16_bit)
        };
        let block = BLOCK_TOKENS as u64;
        let (full, rest) = (tokens / block, tokens % block);
        let open = rest.div_ceil(SUB_BLOCK_TOKENS as u64) * u64::from(self.frames_per_sub_block);
        let at_end = sealed(full) + open;
        match full.checked_sub(1) {
            Some(before) => at_end.max(sealed(before) + u64::from(self.block_frames())),
            None => at_end,
        }
    }

    /// Most full blocks that fit in the arena.
    pub(crate) fn full_blocks_max(&self) -> u32 {
        let frames = self.levels.targets().map(|p| self.level_frames(p));
        let least = frames.min().unwrap_or(self.block_frames());
        self.frames / least.min(self.block_frames()).max(1)
    }

    /// Most blocks that fit in the arena, each with one sub-block.
    pub(crate) fn blocks_max(&self) -> u32 {
        self.full_blocks_max()
            .max(self.frames / self.frames_per_sub_block)
    }

    /// Checks every field.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            ("frames", u64::from(self.frames)),
            ("frame_bytes", self.frame_bytes),
            ("frames_per_sub_block", u64::from(self.frames_per_sub_block)),
            ("max_blocks_per_seq", u64::from(self.max_blocks_per_seq)),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        // A block counts its frames in 16 bits; token positions are 32 bits on the device.
        for (field, value, max) in [
            ("frames_per_sub_block", self.frames_per_sub_block, 4096),
            ("max_blocks_per_seq", self.max_blocks_per_seq, 1 << 24),
            ("frames", self.frames, u32::MAX - 1),
        ] {
            if value > max {
                let (value, max) = (u64::from(value), u64::from(max));
                return Err(ConfigError::TooLarge { field, value, max });
            }
        }
        let expected = self.block_frames();
        let found = self.level_frames(0);
        if found != expected {
            return Err(ConfigError::LevelZero { expected, found });
        }
        let block = expected;
        // The first level changes may take more frames, where few records of either size fit in a
        // frame. No block shrinks to these levels.
        for level in self.levels.targets() {
            let frames = self.level_frames(level);
            let level = usize::from(level);
            if !(1..=block).contains(&frames) {
                return Err(ConfigError::LevelFrames {
                    level,
                    frames,
                    block,
                });
            }
        }
        if self.sink < self.protected {
            let (sink, protected) = (self.sink.0, self.protected.0);
            return Err(ConfigError::Sink { sink, protected });
        }
        let needed = expected + self.shrink_reserve();
        if self.frames < needed {
            return Err(ConfigError::TooSmall {
                frames: self.frames,
                frame_bytes: self.frame_bytes,
                block: expected,
                shrink_reserve: self.shrink_reserve(),
                bytes_min: u64::from(needed) * self.frame_bytes,
            });
        }
        Ok(())
    }
}
