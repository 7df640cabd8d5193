//! What it costs to preempt a sequence.

use std::cmp::Ordering;

/// Context length at which attending to the context costs as much as the rest of a token's
/// computation does (about 30,000 for an 8B model). Only the order of victims depends on it.
const ATTENTION_PARITY_TOKENS: u64 = 32_768;

/// Work per frame, compared without dividing. No frames is the dearest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecomputeCost {
    /// In units of a token's work without attention, times `2 * ATTENTION_PARITY_TOKENS`.
    work: u64,
    /// Frames that preempting gives.
    frames: u64,
}

impl RecomputeCost {
    /// Cost of preempting a sequence of `computed` tokens for `frames` frames, if its first `kept`
    /// tokens come back as a prefix hit.
    pub fn new(computed: u64, kept: u64, frames: u64) -> Self {
        let work = recompute_work(computed) - recompute_work(kept);
        Self { work, frames }
    }

    pub(crate) fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (u128::from(self.work), u128::from(other.work));
        match (self.frames, other.frames) {
            (0, 0) => a.cmp(&b),
            (0, _) => Ordering::Greater,
            (_, 0) => Ordering::Less,
            (x, y) => (a * u128::from(y)).cmp(&(b * u128::from(x))),
        }
    }
}

/// Work to compute the first `tokens` tokens.
fn recompute_work(tokens: u64) -> u64 {
    tokens * (2 * ATTENTION_PARITY_TOKENS + tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_work_per_frame() {
        let cost = |work, frames| RecomputeCost { work, frames };
        assert_eq!(cost(10, 5).cmp(&cost(9, 3)), Ordering::Less);
        assert_eq!(cost(10, 5).cmp(&cost(20, 10)), Ordering::Equal);
        assert_eq!(cost(1, 0).cmp(&cost(1 << 60, 1)), Ordering::Greater);
        assert_eq!(
            cost(u64::MAX, 1).cmp(&cost(u64::MAX, u64::MAX)),
            Ordering::Greater
        );
    }

    #[test]
    fn long_contexts_cost_more_per_token() {
        assert!(recompute_work(20_000) > 2 * recompute_work(10_000));
        assert!(recompute_work(32) < 2 * recompute_work(16) + recompute_work(16) / 100);
    }
}
