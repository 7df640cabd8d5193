//! KVmix's recent context: how many of the latest tokens its rule leaves at full precision.
//!
//! The rule has a ratio r, which reads like a share of the context. The recurrence of the released
//! code takes it of what is *at full precision now*, L: a step adds its tokens to L, and what is
//! beyond ⌊r L⌋ is quantised, in whole groups of g. So the window forgets the context within a few
//! steps and settles between about g r / (1 − r) and g / (1 − r) tokens, whatever the context is.
//! Blocks of 128 tokens stay at 16 bit while they are open, which is more than any of these windows
//! on average (though right after a block is sealed it is less); larger shares guard the sealed
//! blocks that lie wholly within them (`recent=profile`).

use ebb_kernels::formats::FormatId;

/// Tokens that KVmix quantises together.
pub const RECENT_GROUP: usize = 32;

/// The released code's share of full precision for a page of this format: 0.1, 0.2, 0.2 and 0.3 for
/// 1, 2, 3 and 4 bit, so that the layers with the higher scores keep more.
pub fn ratio(format: FormatId) -> f64 {
    match format.nominal_bits() {
        bits if bits < 2.0 => 0.1,
        bits if bits < 4.0 => 0.2,
        _ => 0.3,
    }
}

/// What a share really keeps at full precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Tokens right after a prompt.
    pub after_prompt: usize,
    /// Tokens decoded until the window no longer depends on the prompt.
    pub settles_after: usize,
    /// Fewest tokens from then on.
    pub least: usize,
    /// Most tokens from then on.
    pub most: usize,
}

/// Follows the recurrence: a prompt of `prompt` tokens, then one token a step. `ratio` is from 0 to
/// 1, 1 excluded.
pub fn window(ratio: f64, group: usize, prompt: usize) -> Window {
    let quantise = |full: usize| {
        let keep = (ratio * full as f64) as usize;
        full - (full - keep) / group * group
    };
    // From nothing: L has come round once it has been quantised twice at the same length.
    let steady = |mut full: usize| {
        let mut seen = Vec::new();
        while !seen.contains(&full) {
            seen.push(full);
            full = quantise(full + 1);
        }
        let cycle = seen.split_off(seen.iter().position(|s| *s == full).unwrap_or(0));
        (seen.len(), cycle)
    };
    let after_prompt = quantise(prompt);
    let (settles_after, cycle) = steady(after_prompt);
    Window {
        after_prompt,
        settles_after,
        least: cycle.iter().copied().min().unwrap_or(0),
        most: cycle.iter().copied().max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_is_seven_to_thirty_eight_tokens_whatever_the_prompt() {
        for prompt in [1000, 4096, 100_000] {
            let window = window(0.2, 32, prompt);
            // 39 is the first length with 39 − ⌊39 / 5⌋ = 32 tokens to quantise.
            assert_eq!((window.least, window.most), (7, 38), "{window:?}");
            assert!(window.after_prompt >= prompt / 5 && window.after_prompt < prompt / 5 + 33);
            assert!(window.settles_after < 40, "{window:?}");
        }
        assert_eq!(window(0.0, 32, 64).most, 31);
        assert_eq!(window(0.3, 32, 50).least, 13);
    }

    #[test]
    fn shares_follow_the_bits() {
        let shares = [FormatId::Int2, FormatId::Int3, FormatId::Int4].map(ratio);
        assert_eq!(shares, [0.2, 0.2, 0.3]);
    }
}
