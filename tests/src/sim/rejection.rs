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
    // Blocks that may have something in the window of a sequence that is so far ahead of its oldest
    // token.
    let in_window = |ahead: u64| match &pool.window {
        Some(window) => {
            let seen = u64::from(window.tokens) - 1 + ahead;
            // However these tokens lie, the first of them being the last one of its block.
            (127..127 + seen).map(|at| at / 128).max().unwrap_or(0) + 1
        }
        None => u64::MAX,
    };
    let kept_per_sub_block = match &pool.window {
        Some(window) => u64::from(window.kept_per_sub_block),
        None => sub_block,
    };
    if !config.mode.shrinks() {
        let chunk = config.prefill_chunk.min(config.max_step_tokens);
        let whole = in_window((chunk * config.max_in_flight) as u64).saturating_mul(8);
        let all = tokens.div_ceil(16);
        return all * kept_per_sub_block + all.min(whole) * (sub_block - kept_per_sub_block);
    }
    let at = |bits: u8, is_whole: bool| {
        let position = pool.levels.floor(MinBits(bits));
        let kept = pool.window.as_ref().map(|window| &window.kept);
        let table = kept.filter(|_| !is_whole).unwrap_or(&pool.levels);
        u64::from(table.level(position).size.frames)
    };
    let own = min_kv_bits;
    let whole_max = in_window(128);
    // The recent context of KVmix's rule is at 16 bit: r / (1 - r) of the longest step at most.
    let share = match config.mode {
        Mode::Static => u64::from(config.recent_permille),
        Mode::PreemptOnly | Mode::Progressive => 0,
    };
    let step = u64::from(config.static_chunk).min(prompt as u64).max(128);
    let recent = step * share / (1000 - share) / 128;
    // Block by block, of so many sealed ones and perhaps an open one.
    let sealed = |blocks: u64, open: u64| {
        let is_whole = |index: u64| blocks - index + open <= whole_max;
        let at_16_bit = |index: u64| match is_whole(index) {
            true => 8 * sub_block,
            false => 8 * kept_per_sub_block,
        };
        let shrunk = (0..blocks).map(|index| {
            let bound = match index {
                0 => pool.sink.0,
                _ if index + 1 == blocks => pool.protected.0,
                _ => 0,
            };
            at(own.max(bound), is_whole(index))
        });
        let kept = (blocks - recent.min(blocks)..blocks).map(at_16_bit);
        let most = shrunk.sum::<u64>() + kept.sum::<u64>();
        most.min((0..blocks).map(at_16_bit).sum())
    };
    let open = |tokens: u64| {
        // Just before the last block of a multiple of 128 is sealed, it is all at 16 bit.
        let full = (tokens - 1) / 128;
        sealed(full, 1) + (tokens - full * 128).div_ceil(16) * sub_block
    };
    let peak = (1..=tokens).map(open).max().unwrap_or(0);
    peak.max(sealed(tokens / 128, 0))
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
