//! How the pool is used, in frames and bytes.

/// A snapshot of the pool. Every frame is free, retiring, live, hidden, cached, or being written by
/// a shrink, so these six counts sum to `frames_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Frames in the arena.
    pub frames_total: u32,
    /// Frames without an owner that no step in flight may touch.
    pub frames_free: u32,
    /// Frames without an owner that a step in flight may still touch.
    pub frames_retiring: u32,
    /// Frames of blocks that a sequence holds, without hidden ones; a shared block counts once.
    pub frames_live: u32,
    /// Frames of such blocks that no sequence sees, since they lie behind sliding windows: like
    /// cached ones they are there for later prompts, and taken when memory is asked for.
    pub frames_hidden: u32,
    /// Frames of blocks that only the prefix cache keeps.
    pub frames_cached: u32,
    /// Frames that the step being planned, or one in flight, shrinks blocks to.
    pub frames_shrinking: u32,
    /// Frames of the shrink reserve.
    pub frames_reserve: u32,
    /// Frames of live blocks that can shrink further. 0: shrinking cannot free any more.
    pub frames_shrinkable: u64,
    /// Bytes of one frame.
    pub frame_bytes: u64,
    /// Bytes of live, hidden and cached frames that have tokens in them.
    pub bytes_used: u64,
    /// Bytes of live blocks that no token is in yet.
    pub bytes_reserved_empty: u64,
    /// Blocks that a sequence holds.
    pub blocks_live: u32,
    /// Blocks that only the prefix cache keeps.
    pub blocks_cached: u32,
    /// Blocks that a later prompt can find: every cached one and the published live ones.
    pub blocks_published: u32,
    /// Sequences.
    pub sequences: u32,
}

impl Usage {
    /// Share of the arena held by sequences, 0 to 1: what a dashboard calls KV cache usage.
    pub fn fraction_live(&self) -> f64 {
        f64::from(self.frames_live) / f64::from(self.frames_total.max(1))
    }
}

/// Blocks at one precision level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LevelUse {
    /// The level.
    pub level: u16,
    /// Blocks there, live and cached; open ones are at level 0.
    pub blocks: u32,
    /// Of those, blocks that only the prefix cache keeps.
    pub cached: u32,
    /// Of all, trimmed blocks: see [`WindowConfig`](crate::WindowConfig).
    pub trimmed: u32,
    /// Of the cached ones, trimmed blocks.
    pub cached_trimmed: u32,
    /// Of those in use, hidden blocks: what a window lets go of them is kept for later prompts.
    pub hidden: u32,
    /// Bytes of codes and metadata in them, as if all were sealed.
    pub bytes: u64,
}

/// Bits at which a sequence's tokens have read their context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeqBits {
    /// Lowest nominal code bits, including what its cached prefix was computed from.
    pub lowest: u8,
    /// Mean stored bits of the values read, in hundredths, over the tokens computed.
    pub mean_centibits: u32,
    /// Tokens computed.
    pub tokens: u64,
}

impl SeqBits {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |bits: Self| u64::from(bits.mean_centibits) * bits.tokens;
        let tokens = self.tokens + other.tokens;
        let mean = (sum(self) + sum(other)).checked_div(tokens);
        Self {
            lowest: self.lowest.min(other.lowest),
            mean_centibits: mean.unwrap_or(1600) as u32,
            tokens,
        }
    }
}

impl Default for SeqBits {
    fn default() -> Self {
        Self {
            lowest: 16,
            mean_centibits: 1600,
            tokens: 0,
        }
    }
}
