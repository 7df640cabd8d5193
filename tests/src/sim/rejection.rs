//! Which requests must be rejected.

use ebb_block_manager::precision::MinBits;
use ebb_block_manager::{BLOCK_TOKENS, PoolConfig};
use ebb_scheduler::{Config, Mode, RejectReason, Request};

/// The load when a request arrives.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Entries of the queue.
    pub waiting: usize,
    /// Choices that run or wait, as far as clients know.
    pub choices: usize,
}

/// How a request must be rejected, by arithmetic of our own. `None`: it is taken, unless the queue
/// is full and there is no memory for the free batch slots, which the next plan must show.
pub fn expected_rejection(
    request: &Request,
    load: Load,
    config: &Config,
    pool: &PoolConfig,
) -> Option<&'static str> {
    let tokens = request.prompt.len() as u64 + u64::from(request.max_tokens);
    let computed = if request.max_tokens == 0 {
        tokens
    } else {
        tokens - 1
    };
    // In static mode memory is kept for one chunk of a prompt, for all of its blocks but one.
    let kept = match config.mode {
        Mode::Static => (config.static_chunk / BLOCK_TOKENS as u32 - 1) * pool.block_frames(),
        Mode::PreemptOnly | Mode::Progressive => 0,
    };
    let room = u64::from((pool.frames - pool.shrink_reserve()).saturating_sub(kept));
    if request.prompt.is_empty() {
        Some("EmptyPrompt")
    } else if request.n == 0 || request.n as usize > config.max_running {
        Some("Choices")
    } else if tokens > u64::from(pool.max_blocks_per_seq) * BLOCK_TOKENS as u64 {
        Some("TooLong")
    } else if least_frames(
        computed,
        request.prompt.len(),
        request.min_kv_bits,
        config,
        pool,
    ) > room
    {
        match least_frames(computed, request.prompt.len(), 0, config, pool) > room {
            true => Some("NeverFits"),
            false => Some("NeverFitsAtBits"),
        }
    } else if load.waiting >= config.max_waiting
        && load.choices >= config.max_running + config.max_waiting
    {
        Some("QueueFull")
    } else {
        None
    }
}

/// The most frames that a sequence of up to `tokens` tokens takes at any time, with all blocks at
/// their floor.
fn least_frames(
    tokens: u64,
    prompt: usize,
    min_kv_bits: u8,
    config: &Config,
    pool: &PoolConfig,
) -> u64 {
    let sub_block = u64::from(pool.frames_per_sub_block);
    if !config.mode.shrinks() {
        return tokens.div_ceil(16) * sub_block;
    }
    let at = |bits: u8| {
        let position = pool.levels.floor(MinBits(bits));
        u64::from(pool.levels.level(position).size.frames)
    };
    let own = min_kv_bits;
    let [first, last] = [pool.sink, pool.protected].map(|bound| at(own.max(bound.0)));
    // The recent context of KVmix's rule is at 16 bit: r / (1 - r) of the longest step at most.
    let share = match config.mode {
        Mode::Static => u64::from(config.recent_permille),
        Mode::PreemptOnly | Mode::Progressive => 0,
    };
    let step = u64::from(config.static_chunk).min(prompt as u64).max(128);
    let recent = step * share / (1000 - share) / 128;
    let sealed = |blocks: u64| {
        let shrunk = match blocks {
            0 => 0,
            1 => first,
            _ => first + last + (blocks - 2) * at(own),
        };
        (shrunk + recent.min(blocks) * 8 * sub_block).min(blocks * 8 * sub_block)
    };
    let open = |tokens: u64| {
        // Just before the last block of a multiple of 128 is sealed, it is all at 16 bit.
        let full = (tokens - 1) / 128;
        sealed(full) + (tokens - full * 128).div_ceil(16) * sub_block
    };
    let peak = (1..=tokens).map(open).max().unwrap_or(0);
    peak.max(sealed(tokens / 128))
}

/// The kind of a rejection.
pub fn kind(reason: &RejectReason) -> &'static str {
    match reason {
        RejectReason::QueueFull { .. } => "QueueFull",
        RejectReason::EmptyPrompt => "EmptyPrompt",
        RejectReason::Choices { .. } => "Choices",
        RejectReason::TooLong { .. } => "TooLong",
        RejectReason::NeverFits { .. } => "NeverFits",
        RejectReason::NeverFitsAtBits { .. } => "NeverFitsAtBits",
    }
}
