//! KVmix's recent context: how many of the latest tokens its rule keeps at full precision.
//!
//! The rule ("Dynamic Pivotal Context Selection") has a share r. At each time step it keeps
//! ⌊r · (new + kept)⌋ of the tokens that the step adds and of those that were kept before. So much
//! of a prompt is kept when it is done, and within a few steps of the answer next to nothing.
//!
//! Blocks are quantised whole, so a time step is what a sequence computes before blocks come down:
//! a chunk of its prompt, or a block of its answer.

use ebb_block_manager::BLOCK_TOKENS;

/// Tokens that the rule keeps of the first `computed` tokens of a sequence: a share in thousandths,
/// after a prompt of `prompt` tokens in chunks of `chunk`.
///
/// # Panics
/// If `chunk` is 0.
pub fn recent_tokens(share: u32, prompt: u32, chunk: u32, computed: u32) -> u32 {
    assert!(chunk > 0, "a chunk has tokens");
    if share == 0 {
        return 0;
    }
    let block = BLOCK_TOKENS as u32;
    let (mut at, mut kept) = (0, 0_u64);
    while at < computed {
        let (step, end) = if at < prompt {
            (chunk, prompt)
        } else {
            (block, u32::MAX)
        };
        let next = (at / step * step)
            .saturating_add(step)
            .min(end)
            .min(computed);
        let before = kept;
        kept = u64::from(share) * (kept + u64::from(next - at)) / 1000;
        // Whole steps that change nothing any more change nothing later either.
        let is_settled = kept == before && next - at == step && at >= prompt;
        if is_settled {
            let rest = computed - next;
            at = next + rest / block * block;
        } else {
            at = next;
        }
    }
    kept as u32
}

/// The most tokens that the rule keeps, whatever the prompt: r / (1 − r) of the longest step.
pub fn recent_tokens_max(share: u32, step: u32) -> u32 {
    let rest = u64::from(1000_u32.saturating_sub(share).max(1));
    (u64::from(share) * u64::from(step) / rest).min(u32::MAX.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule in words, on a list of tokens: a step adds its tokens to those at full precision,
    /// and all but the latest ⌊r · n⌋ of these n are quantised.
    fn naive(share: u32, prompt: u32, chunk: u32, computed: u32) -> Vec<u32> {
        let mut full = Vec::new();
        for token in 0..computed {
            full.push(token);
            let next = token + 1;
            let ends = match token < prompt {
                true => next.is_multiple_of(chunk) || next == prompt,
                false => next.is_multiple_of(BLOCK_TOKENS as u32),
            };
            if ends || next == computed {
                let keep = full.len() * share as usize / 1000;
                full.drain(..full.len() - keep);
            }
        }
        full
    }

    #[test]
    fn the_latest_tokens_are_kept_that_the_rule_keeps() {
        for share in [0, 1, 100, 200, 300, 500, 900, 999] {
            for (prompt, chunk) in [(0, 128), (1, 128), (300, 128), (1000, 256), (4096, 2048)] {
                for computed in (0..6000).step_by(61).chain([128, 4096, 4097, 4224, 4352]) {
                    let expect = naive(share, prompt, chunk, computed);
                    let kept = recent_tokens(share, prompt, chunk, computed);
                    let case = (share, prompt, chunk, computed);
                    assert_eq!(kept as usize, expect.len(), "{case:?}");
                    assert!(expect.iter().copied().eq(computed - kept..computed));
                    assert!(kept <= recent_tokens_max(share, chunk.max(128)), "{case:?}");
                }
            }
        }
    }

    // A fifth of a prompt of 4,096 tokens; then it is gone within two blocks of the answer.
    #[test]
    fn a_prompts_share_is_gone_within_a_few_steps() {
        let kept = |computed| recent_tokens(200, 4096, 4096, computed);
        assert_eq!(
            [4096, 4224, 4352, 4480].map(kept),
            [819, 189, 63, 38],
            "⌊0.2 · (819 + 128)⌋ = 189, and so on"
        );
        // It settles at ⌊0.2 · (32 + 128)⌋.
        assert_eq!(kept(4096 + 128 * 7000), 32);
    }
}
