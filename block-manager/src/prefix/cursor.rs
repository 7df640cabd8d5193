//! Looking up the same prompt again, as a scheduler does for the head of its queue.

use super::{EntryId, PrefixIndex};
use crate::{
    BLOCK_TOKENS, PoolConfig, PrefixHit,
    block::{Block, BlockTokens, Blocks},
    epoch::Epoch,
    precision::MinBits,
};

/// What a lookup looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefixes<'a> {
    pub(crate) index: &'a PrefixIndex,
    pub(crate) blocks: &'a Blocks,
    pub(crate) config: &'a PoolConfig,
    /// Steps up to this one have retired.
    pub(crate) done: Epoch,
}

/// What a lookup of one prompt found. Looking it up again costs nothing while the prefix cache has
/// not changed; after a change, blocks that matched are not hashed or compared again. A cursor
/// belongs to one prompt and one pool.
#[derive(Clone, Debug, Default)]
pub struct PrefixCursor {
    /// Entries that matched, from the prompt's start, each with its generation then.
    matched: Vec<(EntryId, u32)>,
    /// So many of them are the hit: where windows look back from its end, no block is trimmed.
    used: usize,
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
        self.used = 0;
        self.next_hash = None;
        self.seen = (0, 0, 0);
    }

    /// Entries of the last hit, from the prompt's start.
    pub(crate) fn entries(&self) -> impl Iterator<Item = EntryId> + '_ {
        self.matched[..self.used].iter().map(|&(id, _)| id)
    }

    /// Brings the cursor up to date: the longest published chain of whole blocks that starts
    /// `tokens` and covers at most `max_tokens` of them.
    pub(crate) fn seek(
        &mut self,
        prefixes: Prefixes<'_>,
        tokens: &[u32],
        max_tokens: usize,
        min_bits: MinBits,
    ) -> PrefixHit {
        let Prefixes { index, blocks, .. } = prefixes;
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
        let alike = self.longest_whole(prefixes, self.matched.len());
        self.used = self.longest_with_state(prefixes, alike, min_bits);
        self.hit = PrefixHit {
            tokens: self.used * BLOCK_TOKENS,
            alike: alike * BLOCK_TOKENS,
            frames_revived: self.frames_revived(prefixes),
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

    /// The most of `used` matches behind which a state is kept that was computed from nothing below
    /// `min_bits`, where sequences have states.
    fn longest_with_state(
        &self,
        prefixes: Prefixes<'_>,
        mut used: usize,
        min_bits: MinBits,
    ) -> usize {
        if prefixes.config.states.is_none() {
            return used;
        }
        while used > 0 {
            let (last, _) = self.matched[used - 1];
            let state = prefixes.index.get(last).state;
            if state.is_none_or(|state| state.bits < min_bits.0) {
                used -= 1;
                continue;
            }
            match self.longest_whole(prefixes, used) {
                whole if whole == used => return used,
                shorter => used = shorter,
            }
        }
        0
    }

    /// The most of `used` matches from whose end no window looks back at a trimmed block.
    fn longest_whole(&self, prefixes: Prefixes<'_>, mut used: usize) -> usize {
        loop {
            let seen = prefixes.config.first_visible(used * BLOCK_TOKENS)..used;
            let is_trimmed = |&index: &usize| self.block(prefixes, index).is_trimmed;
            match seen.rev().find(is_trimmed) {
                Some(trimmed) => used = trimmed,
                None => return used,
            }
        }
    }

    fn block<'a>(&self, prefixes: Prefixes<'a>, index: usize) -> &'a Block {
        let (id, _) = self.matched[index];
        &prefixes.blocks[prefixes.index.get(id).block]
    }

    /// Frames that eviction and trimming could free now, and not once a sequence has the hit.
    fn frames_revived(&self, prefixes: Prefixes<'_>) -> u32 {
        let first_visible = prefixes.config.first_visible(self.used * BLOCK_TOKENS);
        let revived = (0..self.used).map(|index| {
            let block = self.block(prefixes, index);
            let windowed = match block.is_trimmed {
                true => 0,
                false => prefixes.config.windowed_frames(block.level),
            };
            let is_visible = index >= first_visible;
            match (block.refs, block.hidden_at) {
                _ if block.busy_until > prefixes.done => 0,
                (0, _) if is_visible => u32::from(block.frames),
                // It becomes a hidden one.
                (0, _) => u32::from(block.frames) - windowed,
                (_, 1..) if is_visible => windowed,
                _ => 0,
            }
        });
        revived.sum()
    }
}
