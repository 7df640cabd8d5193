//! Which blocks of a sequence keep more than their final formats, and how long.

use ebb_block_manager::BLOCK_TOKENS;
use ebb_kernels::formats::{FormatId, legal_shrink, precision_levels};
use ebb_kernels::kv::Side;

/// Blocks at the protected width. The open block is at 16 bit beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guards {
    /// Whether the first block is one: it holds the attention sink.
    pub sink: bool,
    /// What the first block's pages become instead, where it keeps the sink's tokens alone.
    pub sink_formats: Option<Vec<FormatId>>,
    /// Which of the last sealed blocks are, by page, `[layer * 2 + side]`.
    pub recent: Vec<RecentGuard>,
}

impl Guards {
    /// Ebb's own: the first and the last sealed block, on both sides.
    pub fn usual(layers: usize) -> Self {
        Self {
            sink: true,
            sink_formats: None,
            recent: vec![RecentGuard::Blocks(1); layers * 2],
        }
    }
}

/// How many of the last sealed blocks keep the protected width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecentGuard {
    /// So many.
    Blocks(usize),
    /// Those that lie wholly within the recent context of KVmix's rule, with this share in
    /// thousandths ([`ebb_scheduler::recent_tokens`]). A text without a prompt comes in steps of a
    /// block, as an answer does.
    Rule(u32),
    /// Those that lie wholly within this share of all tokens, in thousandths: what KVmix's rule
    /// keeps right after a prompt.
    AfterPrompt(u32),
}

impl RecentGuard {
    /// Blocks, when so many are sealed and nothing was a prompt.
    pub fn blocks(self, sealed: usize) -> usize {
        let tokens = sealed * BLOCK_TOKENS;
        match self {
            Self::Blocks(count) => count,
            Self::Rule(share) => {
                let block = BLOCK_TOKENS as u32;
                let kept = ebb_scheduler::recent_tokens(share, 0, block, tokens as u32);
                kept as usize / BLOCK_TOKENS
            }
            Self::AfterPrompt(share) => tokens * share as usize / 1000 / BLOCK_TOKENS,
        }
    }
}

/// What a specification means for a model: the formats of all pages, `[layer * 2 + side]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageFormats {
    /// Of sealed blocks that nothing protects.
    pub sealed: Vec<FormatId>,
    /// Of guarded ones.
    pub protected: Vec<FormatId>,
    /// Which those are.
    pub guards: Guards,
    /// The greatest length in tokens, where all blocks come down together on the way to it, as
    /// PM-KVQ's budgets have it ([`by_length`]). `None`: a block goes to its final formats as soon
    /// as nothing protects it.
    pub max_length: Option<usize>,
}

impl PageFormats {
    /// Formats of a sealed block, where `sealed` blocks are and `age` of them were sealed after it.
    pub fn of_block(&self, is_first: bool, age: usize, sealed: usize) -> Vec<FormatId> {
        let guards = &self.guards;
        let page = |page: usize| {
            let is_recent = age < guards.recent[page].blocks(sealed);
            let (floor, side) = (self.sealed[page], Side::of_page(page));
            let now = match self.max_length {
                Some(most) => by_length(floor, side, sealed * BLOCK_TOKENS, most),
                None => floor,
            };
            match &guards.sink_formats {
                // These are made from 16 bit only.
                Some(_) if is_first && is_recent => FormatId::F16,
                Some(formats) if is_first => formats[page],
                // A guarded block is not below one that nothing guards: none ever goes up.
                _ if is_recent || (is_first && guards.sink) => {
                    let protected = self.protected[page];
                    match now.nominal_bits() > protected.nominal_bits() {
                        true => now,
                        false => protected,
                    }
                }
                _ => now,
            }
        };
        (0..self.sealed.len()).map(page).collect()
    }
}

/// PM-KVQ's rule (section 3.1): a page's budget is that of `max_length` tokens at its floor. It has
/// the widest format of its ladder whose codes of `tokens` tokens fit into that, of the paper's 16,
/// 8, 4 and 2 bits; the floor at the latest.
pub fn by_length(floor: FormatId, side: Side, tokens: usize, max_length: usize) -> FormatId {
    let bits = |format: FormatId| f64::from(format.nominal_bits());
    let budget = bits(floor) * max_length as f64;
    let fits = |format: &FormatId| bits(*format) * tokens as f64 <= budget;
    let halves = |format: &FormatId| [16.0, 8.0, 4.0, 2.0].contains(&format.nominal_bits());
    let above = precision_levels(side).filter(|f| legal_shrink(*f, floor, side));
    let fitting = above.filter(halves).filter(fits);
    let widest = fitting.max_by(|a, b| bits(*a).total_cmp(&bits(*b)));
    widest.unwrap_or(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    // t · b <= L · Fbit by a double loop over all tokens and widths.
    #[test]
    fn a_budget_is_never_exceeded_and_never_left_unused() {
        let ladder = [
            (16, FormatId::F16),
            (8, FormatId::Int8),
            (4, FormatId::Int4),
            (2, FormatId::Int2),
        ];
        for max_length in [1, 100, 128, 1000, 4096] {
            for (floor_bits, floor) in ladder {
                for tokens in 0..=max_length {
                    let mut expect = floor;
                    for (bits, format) in ladder {
                        if bits >= floor_bits && tokens * bits <= max_length * floor_bits {
                            expect = format;
                            break;
                        }
                    }
                    for side in [Side::K, Side::V] {
                        let got = by_length(floor, side, tokens, max_length);
                        assert_eq!(got, expect, "{tokens} of {max_length} at {floor}");
                    }
                }
            }
        }
    }

    // Guarded at 8 bit, then by length at 16 or 8: never up again.
    #[test]
    fn no_block_goes_up_whatever_guards_it() {
        let formats = PageFormats {
            sealed: vec![FormatId::Int4; 2],
            protected: vec![FormatId::Int8; 2],
            guards: Guards::usual(1),
            max_length: Some(2048),
        };
        for block in 0..16 {
            let bits = (block + 1..=16).map(|sealed| {
                let at = formats.of_block(block == 0, sealed - 1 - block, sealed);
                at[0].nominal_bits()
            });
            assert!(bits.is_sorted_by(|a, b| a >= b), "block {block}");
        }
    }

    #[test]
    fn shares_count_whole_blocks() {
        assert_eq!(RecentGuard::AfterPrompt(200).blocks(32), 6);
        assert_eq!(RecentGuard::AfterPrompt(100).blocks(32), 3);
        assert_eq!(RecentGuard::AfterPrompt(200).blocks(4), 0);
        // In an answer a fifth of what is at full precision is less than a block.
        assert_eq!(RecentGuard::Rule(200).blocks(1000), 0);
        assert_eq!(RecentGuard::Rule(900).blocks(1000), 8);
    }

    // A block that came down never goes up again.
    #[test]
    fn a_block_leaves_the_recent_context_for_good() {
        for share in 0..1000 {
            for block in 0..40 {
                let mut kept = true;
                for sealed in block + 1..200 {
                    let now = sealed - 1 - block < RecentGuard::AfterPrompt(share).blocks(sealed);
                    assert!(
                        kept || !now,
                        "share {share}, block {block}, {sealed} sealed"
                    );
                    kept = now;
                }
            }
        }
    }
}
