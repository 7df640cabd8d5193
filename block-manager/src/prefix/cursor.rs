//! Looking up the same prompt again, as a scheduler does for the head of its queue.

use super::{EntryId, PrefixIndex};
use crate::{
    BLOCK_TOKENS, PrefixHit,
    block::{BlockTokens, Blocks},
    epoch::Epoch,
    precision::MinBits,
};

/// What a lookup of one prompt found. Looking it up again costs nothing while the prefix cache has
/// not changed; after a change, blocks that matched are not hashed or compared again. A cursor
/// belongs to one prompt and one pool.
#[derive(Clone, Debug, Default)]
pub struct PrefixCursor {
    /// Entries that matched, from the prompt's start, each with its generation then.
    matched: Vec<(EntryId, u32)>,
    /// Hash of the chain one block longer than `matched`.
    next_hash: Option<u64>,
    /// The cache's version and what was asked for when `hit` was found: blocks, and their bits.
    seen: (u64, usize, u8),
    hit: PrefixHit,
}

impl PrefixCursor {
    /// Forgets everything, to be used for another prompt.
    pub fn clear(&mut self) {
        self.matched.clear();
        self.next_hash = None;
        self.seen = (0, 0, 0);
    }

    /// Entries of the last hit, from the prompt's start.
    pub(crate) fn entries(&self) -> impl Iterator<Item = EntryId> + '_ {
        self.matched.iter().map(|&(id, _)| id)
    }

    /// Brings the cursor up to date: the longest published chain of whole blocks that starts
    /// `tokens` and covers at most `max_tokens` of them.
    pub(crate) fn seek(
        &mut self,
        index: &PrefixIndex,
        blocks: &Blocks,
        tokens: &[u32],
        max_tokens: usize,
        min_bits: MinBits,
        done: Epoch,
    ) -> PrefixHit {
        let wanted = tokens.len().min(max_tokens) / BLOCK_TOKENS;
        let seen = (index.version, wanted, min_bits.0);
        if self.seen == seen {
            return self.hit;
        }
        self.drop_stale(index, wanted);
        let is_low = |id: EntryId| {
            let block = &blocks[index.get(id).block];
            block.bits.min(block.input_bits) < min_bits.0
        };
        if let Some(end) = self.matched.iter().position(|&(id, _)| is_low(id)) {
            self.matched.truncate(end);
            self.next_hash = None;
        }
        let (whole, _) = tokens.as_chunks::<BLOCK_TOKENS>();
        for block in &whole[self.matched.len()..wanted] {
            let Some(id) = self.next(index, blocks, block) else {
                break;
            };
            if is_low(id) {
                break;
            }
            self.matched.push((id, index.get(id).generation));
            self.next_hash = None;
        }
        self.seen = seen;
        self.hit = PrefixHit {
            tokens: self.matched.len() * BLOCK_TOKENS,
            frames_revived: self.evictable_frames(index, blocks, done),
        };
        self.hit
    }

    /// Drops matches that are not asked for or no longer published. Entries go last first, so the
    /// first one alive has all its ancestors.
    fn drop_stale(&mut self, index: &PrefixIndex, wanted: usize) {
        let before = self.matched.len();
        self.matched.truncate(wanted);
        while self
            .matched
            .pop_if(|&mut (id, seen)| index.get(id).generation != seen)
            .is_some()
        {}
        if self.matched.len() < before {
            self.next_hash = None;
        }
    }

    fn next(
        &mut self,
        index: &PrefixIndex,
        blocks: &Blocks,
        tokens: &BlockTokens,
    ) -> Option<EntryId> {
        let parent = self.matched.last().map_or(EntryId::NONE, |&(id, _)| id);
        let hash = *self
            .next_hash
            .get_or_insert_with(|| index.hash(parent, tokens));
        index.find(blocks, parent, hash, tokens)
    }

    /// Frames of the matches that eviction could free now. No live block is below a cached one, so
    /// the cached blocks come last.
    fn evictable_frames(&self, index: &PrefixIndex, blocks: &Blocks, done: Epoch) -> u32 {
        let tail = self
            .matched
            .iter()
            .rev()
            .map(|&(id, _)| &blocks[index.get(id).block]);
        let cached = tail.take_while(|block| block.refs == 0);
        cached
            .filter(|block| block.busy_until <= done)
            .map(|block| u32::from(block.frames))
            .sum()
    }
}
