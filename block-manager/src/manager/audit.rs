//! The audit: everything that must hold after every call, recomputed from scratch.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{BlockManager, share::guarded, sub_block_frames};
use crate::{
    BLOCK_TOKENS, BlockId, SUB_BLOCK_TOKENS, prefix::EntryId, schedule::Bound, sequence::Sequence,
    shrink_queue::Place,
};

/// Ends the audit with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($sentence:tt)+) => {
        if !$condition {
            return Err(format!($($sentence)+));
        }
    };
}

impl BlockManager {
    /// Audits every invariant: each frame has one owner, refcounts match the tables, tables cover
    /// what was granted, the prefix cache's chains and ages are whole, the counters are true. For
    /// tests and simulation; costs time in the size of the pool.
    pub fn check(&self) -> Result<(), String> {
        self.check_frames()?;
        self.check_blocks()?;
        self.check_sequences()?;
        self.check_entries()?;
        self.check_cached()
    }

    /// Blocks in use.
    fn used(&self) -> impl Iterator<Item = BlockId> {
        let (slab, unused) = self.blocks.slab();
        let unused: HashSet<BlockId> = unused.iter().copied().collect();
        (0..slab)
            .map(BlockId)
            .filter(move |id| !unused.contains(id))
    }

    /// Every frame of the arena is in exactly one place.
    fn check_frames(&self) -> Result<(), String> {
        let mut seen = vec![false; self.config.frames as usize];
        let owned = self
            .used()
            .flat_map(|id| self.blocks.frames(id).iter().copied());
        let written = self.pending.iter().flat_map(|p| p.new.iter().copied());
        for frame in self.frames.iter().chain(owned).chain(written) {
            let seen = &mut seen[frame as usize];
            ensure!(!*seen, "frame {frame} is in two places");
            *seen = true;
        }
        let lost = seen.iter().position(|seen| !seen);
        ensure!(lost.is_none(), "frame {lost:?} is nowhere");
        Ok(())
    }

    /// What each block says of itself is what tables, sequences and cache say of it.
    fn check_blocks(&self) -> Result<(), String> {
        let (mut refs, mut guards) = (HashMap::new(), HashMap::new());
        let (mut claims, mut pins) = (HashMap::new(), HashMap::<BlockId, u32>::new());
        for row in self.seqs.iter() {
            let class = row.terms.bound.class();
            for &id in &row.blocks {
                *refs.entry(id).or_insert(0) += 1;
                claims.entry(id).or_insert([0; 4])[class] += 1;
            }
            if let Some(id) = guarded(row)[2] {
                *pins.entry(id).or_insert(0) += 1;
            }
            let guarded = guarded(row).into_iter().flatten();
            guarded.for_each(|id| *guards.entry(id).or_insert(0) += 1);
        }
        let mut empty = 0;
        let mut standing = vec![0; self.config.positions.len()];
        for id in self.used() {
            let block = &self.blocks[id];
            standing[usize::from(block.position)] += 1;
            let claimed = claims.remove(&id).unwrap_or_default();
            ensure!(
                block.claims == claimed,
                "{id} is claimed as {claimed:?}: {block:?}"
            );
            let pinned = pins.remove(&id).unwrap_or(0);
            ensure!(block.pins == pinned, "{id} has {pinned} pins: {block:?}");
            if self.config.shrinks() {
                let place = self.place_of(id);
                ensure!(block.place == place, "{id} belongs to {place:?}: {block:?}");
            }
            let bits = self.config.positions.standing(block.position).min_bits;
            let claim = block.claims.iter().position(|&n| n > 0);
            let lowest = claim.map_or(0, |class| Bound::WIDTHS[class].0);
            ensure!(
                block.rung <= bits && block.rung >= lowest,
                "{id} is at {bits} bits: {block:?}"
            );
            ensure!(
                block.provenance >= lowest,
                "{id} was computed from less than {lowest} bits: {block:?}"
            );
            let (held, guarded) = (refs.remove(&id), guards.remove(&id));
            ensure!(
                block.refs == held.unwrap_or(0),
                "{id} has {held:?} holders: {block:?}"
            );
            ensure!(
                block.guards == guarded.unwrap_or(0),
                "{id} has {guarded:?} guards: {block:?}"
            );
            let frames = u32::from(block.frames);
            if block.sealed {
                let expected = self.config.position_frames(block.position);
                ensure!(
                    frames == expected,
                    "{id} is sealed and needs {expected}: {block:?}"
                );
            } else {
                let filled = usize::from(block.filled);
                let places = frames / self.config.frames_per_sub_block * SUB_BLOCK_TOKENS as u32;
                ensure!(
                    filled <= places as usize,
                    "{id} holds more than fits: {block:?}"
                );
                ensure!(
                    block.position == 0,
                    "{id} shrank before it was sealed: {block:?}"
                );
                ensure!(
                    block.entry == EntryId::NONE,
                    "{id} is published but open: {block:?}"
                );
                empty += u64::from(places) - filled as u64;
            }
        }
        ensure!(
            refs.is_empty(),
            "tables name blocks that are not in use: {refs:?}"
        );
        ensure!(
            standing == self.blocks.standing(),
            "blocks stand at {standing:?}"
        );
        let queued = self.queues.cold.len() + self.queues.live.len();
        let places = self.used().map(|id| self.blocks[id].place);
        let placed = places.filter(|place| *place != Place::Nowhere).count();
        ensure!(queued == placed, "{queued} are queued, not {placed}");
        let live = self
            .used()
            .map(|id| (&self.blocks[id], self.blocks[id].place));
        let live = live.filter(|(_, place)| matches!(place, Place::Live(_)));
        let live: u64 = live.map(|(block, _)| u64::from(block.frames)).sum();
        ensure!(
            live == self.queues.live_frames,
            "{live} frames can shrink further"
        );
        let counted = self.blocks.empty_tokens();
        ensure!(
            counted == empty,
            "{empty} places are empty, but {counted} are counted"
        );
        Ok(())
    }

    /// Each row covers its tokens, and its full blocks are a published chain.
    fn check_sequences(&self) -> Result<(), String> {
        for row in self.seqs.iter() {
            let Sequence {
                id,
                committed,
                granted,
                ..
            } = *row;
            ensure!(self.seqs.get(id).id == id, "{id} is not found by its id");
            ensure!(
                committed <= granted,
                "{id}: {committed} committed of {granted} granted"
            );
            let (len, covering) = (row.blocks.len(), granted.div_ceil(BLOCK_TOKENS));
            ensure!(
                len == covering,
                "{id} has {len} blocks for {granted} tokens"
            );
            for (index, &block) in row.blocks.iter().enumerate() {
                let state = &self.blocks[block];
                let is_full = index < row.full_blocks();
                ensure!(
                    !is_full || state.sealed,
                    "{id}: {block} is full and not sealed"
                );
                let tokens = (granted - index * BLOCK_TOKENS).min(BLOCK_TOKENS);
                let needed = sub_block_frames(&self.config, tokens);
                ensure!(
                    state.position > 0 || u32::from(state.frames) >= needed,
                    "{id}: {block} has too few frames for {tokens} tokens: {state:?}",
                );
                ensure!(
                    is_full || state.position == 0,
                    "{id}: {block} shrank but is not full"
                );
                if is_full && self.config.prefix_cache && !row.terms.is_private {
                    self.check_link(row, index)?;
                }
            }
        }
        Ok(())
    }

    /// Full block `index` of a row stands for an entry whose parent is that of the block before.
    fn check_link(&self, row: &Sequence, index: usize) -> Result<(), String> {
        let entry_at = |index: usize| self.blocks[row.blocks[index]].entry;
        let (id, block) = (row.id, row.blocks[index]);
        ensure!(
            entry_at(index) != EntryId::NONE,
            "{id}: {block} is full and not published"
        );
        let entry = self.index.get(entry_at(index));
        let parent = index.checked_sub(1).map_or(EntryId::NONE, entry_at);
        ensure!(
            entry.parent == parent,
            "{id}: {block} hangs elsewhere: {entry:?}"
        );
        ensure!(
            entry.depth as usize == index,
            "{id}: {block} has another depth: {entry:?}"
        );
        Ok(())
    }

    /// Entries are found by their content, name blocks that name them, and hang on a living parent.
    fn check_entries(&self) -> Result<(), String> {
        let mut children = HashMap::new();
        for (id, entry) in self.index.iter() {
            let tokens = self.blocks.tokens(entry.block);
            let hash = self.index.hash(entry.parent, tokens);
            let found = self.index.find(&self.blocks, entry.parent, hash, tokens);
            ensure!(
                found == Some(id),
                "looking {id:?} up finds {found:?}: {entry:?}"
            );
            let twins: Vec<BlockId> = entry.twins.iter(&self.blocks).collect();
            ensure!(
                twins.len() == entry.twins.len() as usize,
                "{id:?} miscounts {twins:?}"
            );
            for &block in twins.iter().chain([&entry.block]) {
                let state = &self.blocks[block];
                ensure!(
                    state.sealed && state.entry == id,
                    "{block} is not of {id:?}: {state:?}"
                );
                ensure!(
                    self.blocks.tokens(block) == tokens,
                    "{block} is no twin of {id:?}"
                );
                let is_cached = block == entry.block && twins.is_empty();
                ensure!(
                    state.refs > 0 || is_cached,
                    "nobody holds {block} of {id:?}: {state:?}"
                );
            }
            if let Some(parent) = entry.parent.some() {
                ensure!(
                    self.index.children(parent).any(|c| c == id),
                    "{id:?} is lost: {entry:?}"
                );
                *children.entry(parent.index()).or_insert(0) += 1;
            }
        }
        for (id, _) in self.index.iter() {
            let listed = self.index.children(id).count();
            let hanging = children.remove(&id.index()).unwrap_or(0);
            ensure!(
                listed == hanging,
                "{id:?} lists {listed} children of {hanging}"
            );
        }
        ensure!(
            children.is_empty(),
            "entries hang on dead parents: {children:?}"
        );
        Ok(())
    }

    /// Cached blocks are the ones without holders, nothing live hangs below them, and children are
    /// older than their parents.
    fn check_cached(&self) -> Result<(), String> {
        let unheld: HashSet<BlockId> = self
            .used()
            .filter(|&id| self.blocks[id].refs == 0)
            .collect();
        let by_age: Vec<BlockId> = self.cached.iter(&self.blocks).collect();
        let age: HashMap<BlockId, usize> = by_age.iter().copied().zip(0..).collect();
        let listed: HashSet<BlockId> = age.keys().copied().collect();
        ensure!(
            listed == unheld,
            "cached {listed:?}, but nobody holds {unheld:?}"
        );
        ensure!(
            by_age.len() == self.cached.len() as usize,
            "the list of ages has a loop"
        );
        let (mut frames, mut cooling) = (0, BTreeMap::new());
        let mut standing = vec![0; self.config.positions.len()];
        for &id in &by_age {
            let block = &self.blocks[id];
            standing[usize::from(block.position)] += 1;
            frames += u32::from(block.frames);
            if block.busy > self.epochs.done() {
                *cooling.entry(block.busy).or_insert(0) += u32::from(block.frames);
            }
            for child in self.index.children(block.entry) {
                let below = self.index.get(child).block;
                let is_older = age.get(&below).is_some_and(|&below| below < age[&id]);
                ensure!(
                    is_older,
                    "{below} hangs below cached {id}, but is live or younger"
                );
            }
        }
        let counted = self.cached.frames();
        ensure!(
            frames == counted,
            "{frames} frames are cached, but {counted} are counted"
        );
        ensure!(
            standing == self.cached.standing(),
            "cached blocks stand at {standing:?}"
        );
        let counted: BTreeMap<_, _> = self.cached.cooling().filter(|&(_, n)| n > 0).collect();
        ensure!(
            cooling == counted,
            "frames cool as {cooling:?}, but are counted as {counted:?}"
        );
        let evictable = frames - cooling.values().sum::<u32>();
        ensure!(
            evictable == self.cached.evictable(),
            "{evictable} frames are evictable"
        );
        Ok(())
    }
}
