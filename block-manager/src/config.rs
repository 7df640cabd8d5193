//! The shape of the pool, checked once.

use thiserror::Error;

use crate::{
    BLOCK_TOKENS, SUB_BLOCK_TOKENS, SUB_BLOCKS,
    precision::{LevelTable, MinBits},
    states::StateSlots,
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
    /// What blocks give back behind a sliding window, if some layers have one.
    pub window: Option<WindowConfig>,
    /// Lowest bits of the last sealed block of a sequence.
    pub protected: MinBits,
    /// Lowest bits of the first one, at least those of `protected`.
    pub sink: MinBits,
    /// Whether sealed blocks are published for later prompts to share.
    pub prefix_cache: bool,
    /// Slots of states that are kept for prefixes, if the model has recurrent layers.
    pub states: Option<StateSlots>,
    /// Longest sequence, in blocks.
    pub max_blocks_per_seq: u32,
    /// Key of the prefix cache's hash. Choose it at random, so that nobody can prepare prompts that
    /// collide. It affects how fast a lookup is, never what it finds.
    pub hash_key: u64,
}

/// Layers with a sliding window, and what blocks keep behind it.
///
/// Of a block that lies behind the windows of all its sequences, these layers' pages are never read
/// again. The frames that hold nothing else are *windowed*; a block that has given them back is
/// *trimmed*. At level 0 they are the last of each sub-block, at other levels those of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Tokens that a token sees in these layers, itself included; of several windows the longest.
    pub tokens: u32,
    /// Frames of a 16-bit sub-block that are not windowed; at least one.
    pub kept_per_sub_block: u32,
    /// What a trimmed block takes at each level of [`PoolConfig::levels`].
    pub kept: LevelTable,
}

impl WindowConfig {
    /// Most blocks that have something within the window of a sequence that takes `ahead` tokens at
    /// once.
    fn blocks_max(&self, ahead: u32) -> u64 {
        let seen = u64::from(self.tokens - 1) + u64::from(ahead);
        // The first and the last may have a single token each.
        seen.saturating_sub(2) / BLOCK_TOKENS as u64 + 2
    }
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
    /// What trimmed blocks keep contradicts what whole ones have.
    #[error("{what} of blocks behind a sliding window is {found}; it must be {expected}")]
    Window {
        /// Which number.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it can be.
        expected: String,
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
            window: None,
            protected: MinBits(8),
            sink: MinBits(8),
            prefix_cache: true,
            states: None,
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
    /// bit, those between at the floor, those behind the window trimmed. The peak may be just
    /// before the last block was sealed.
    pub fn floor_frames(&self, tokens: u64, min_bits: MinBits, recent_blocks: u32) -> u64 {
        let block = BLOCK_TOKENS as u64;
        let (full, rest) = (tokens / block, tokens % block);
        let open = self.frames_at_16_bit(rest, 0);
        let most = FloorBlocks::new(self, min_bits, recent_blocks);
        let at_end = most.sealed(full, rest > 0) + open;
        match full.checked_sub(1) {
            Some(before) => at_end.max(most.sealed(before, true) + u64::from(self.block_frames())),
            None => at_end,
        }
    }

    /// Frames of `tokens` tokens at 16 bit with nothing behind a window.
    pub fn whole_frames_at_16_bit(&self, tokens: u64) -> u64 {
        sub_blocks(tokens) * u64::from(self.frames_per_sub_block)
    }

    /// Most frames that a sequence of up to `tokens` tokens takes if it never shrinks, while steps
    /// in flight compute up to `ahead` of them: until they have returned, what the first of these
    /// sees is kept.
    pub fn frames_at_16_bit(&self, tokens: u64, ahead: u32) -> u64 {
        let all = self.whole_frames_at_16_bit(tokens);
        let Some(window) = &self.window else {
            return all;
        };
        let whole = window.blocks_max(ahead) * SUB_BLOCKS as u64;
        let windowed = self.frames_per_sub_block - window.kept_per_sub_block;
        all - sub_blocks(tokens).saturating_sub(whole) * u64::from(windowed)
    }

    /// The first block that the next token of a sequence of `committed` tokens sees in every layer.
    pub(crate) fn first_visible(&self, committed: usize) -> usize {
        let window = self.window.as_ref();
        window.map_or(0, |window| {
            (committed + 1).saturating_sub(window.tokens as usize) / BLOCK_TOKENS
        })
    }

    /// What a block at a level gives back when it is trimmed.
    pub(crate) fn windowed_frames(&self, level: u16) -> u32 {
        let window = self.window.as_ref();
        window.map_or(0, |w| {
            self.level_frames(level) - w.kept.level(level).size.frames
        })
    }

    /// Whether frame `index` of a block at a level is windowed.
    pub(crate) fn is_windowed(&self, level: u16, index: usize) -> bool {
        let Some(window) = &self.window else {
            return false;
        };
        let (index, kept) = match level {
            0 => (
                index % self.frames_per_sub_block as usize,
                window.kept_per_sub_block,
            ),
            _ => (index, window.kept.level(level).size.frames),
        };
        index >= kept as usize
    }

    /// Most full blocks that fit in the arena.
    pub(crate) fn full_blocks_max(&self) -> u32 {
        let tables = [Some(&self.levels), self.window.as_ref().map(|w| &w.kept)];
        let levels = self.levels.len() as u16;
        let sizes = tables
            .into_iter()
            .flatten()
            .flat_map(|table| (0..levels).map(|level| table.level(level).size.frames));
        let least = sizes.min().unwrap_or(1);
        self.frames / least.max(1)
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
        self.validate_window()?;
        let block = expected;
        // The first level changes may take more frames, where few records of either size fit in a
        // frame. No block shrinks to these levels.
        let kept = self.window.iter().flat_map(|window| window.kept.targets());
        for level in self.levels.targets().chain(kept) {
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

    fn validate_window(&self) -> Result<(), ConfigError> {
        let Some(window) = &self.window else {
            return Ok(());
        };
        if window.tokens == 0 {
            return Err(ConfigError::Zero {
                field: "window.tokens",
            });
        }
        let wrong = |what, found: u64, expected: String| {
            Err(ConfigError::Window {
                what,
                found,
                expected,
            })
        };
        let kept = window.kept_per_sub_block;
        if !(1..=self.frames_per_sub_block).contains(&kept) {
            let expected = format!("1 to {}", self.frames_per_sub_block);
            return wrong("what is kept of a sub-block", kept.into(), expected);
        }
        let levels = self.levels.len();
        if window.kept.len() != levels {
            let found = window.kept.len() as u64;
            return wrong("the number of levels", found, levels.to_string());
        }
        for level in 0..levels as u16 {
            let found = window.kept.level(level).size.frames;
            let most = match level {
                0 => kept * SUB_BLOCKS as u32,
                _ => self.level_frames(level),
            };
            let least = if level == 0 { most } else { 1 };
            if !(least..=most).contains(&found) {
                let expected = format!("{least} to {most} at precision level {level}");
                return wrong("the size", found.into(), expected);
            }
        }
        Ok(())
    }
}

/// Sub-blocks of so many tokens.
fn sub_blocks(tokens: u64) -> u64 {
    tokens.div_ceil(SUB_BLOCK_TOKENS as u64)
}

/// What the blocks of a sequence take at their floor.
struct FloorBlocks<'a> {
    config: &'a PoolConfig,
    min_bits: MinBits,
    recent: u64,
    /// Blocks that may be within the window.
    in_window: u64,
}

impl<'a> FloorBlocks<'a> {
    fn new(config: &'a PoolConfig, min_bits: MinBits, recent_blocks: u32) -> Self {
        let window = config.window.as_ref();
        // A block at a time is always enough to go on.
        let in_window = window.map_or(u64::MAX, |w| w.blocks_max(BLOCK_TOKENS as u32));
        Self {
            config,
            min_bits,
            recent: recent_blocks.into(),
            in_window,
        }
    }

    /// Frames of a block that may shrink to so many bits.
    fn at(&self, min_bits: MinBits, is_whole: bool) -> u64 {
        let levels = &self.config.levels;
        let table = match &self.config.window {
            Some(window) if !is_whole => &window.kept,
            _ => levels,
        };
        u64::from(table.level(levels.floor(min_bits)).size.frames)
    }

    /// Of so many sealed blocks, behind which there may be an open one.
    fn sealed(&self, blocks: u64, has_open: bool) -> u64 {
        let whole = blocks.min(self.in_window - u64::from(has_open));
        let trimmed = blocks - whole;
        let PoolConfig {
            sink, protected, ..
        } = *self.config;
        let first = self.at(self.min_bits.max(sink), trimmed == 0);
        let last = self.at(self.min_bits.max(protected), true);
        let middle = |is_whole| self.at(self.min_bits, is_whole);
        let shrunk = match (blocks, trimmed) {
            (0, _) => 0,
            (1, _) => first,
            (_, 0) => first + last + middle(true) * (whole - 2),
            _ => first + last + middle(true) * (whole - 1) + middle(false) * (trimmed - 1),
        };
        let at_16_bit = |whole: u64, trimmed: u64| {
            whole * self.at(MinBits::SIXTEEN, true) + trimmed * self.at(MinBits::SIXTEEN, false)
        };
        let recent = blocks.min(self.recent);
        let recent_whole = recent.min(whole);
        let most = shrunk + at_16_bit(recent_whole, recent - recent_whole);
        most.min(at_16_bit(whole, trimmed))
    }
}
