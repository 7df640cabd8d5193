//! The audit: every invariant, recomputed from scratch.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{BlockManager, share::protected_blocks, sub_block_frames};
use crate::{
    BLOCK_TOKENS, BlockId, NO_FRAME, SUB_BLOCK_TOKENS, level_counts::LevelCounts,
    precision::MinBits, prefix::EntryId, sequence::Sequence, shrink_queue::Queued,
};

/// Fails the audit with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($sentence:tt)+) => {
        if !$condition {
            return Err(format!($($sentence)+));
        }
    };
}

impl BlockManager {
    /// Audits every invariant: each frame has one owner, reference counts match the tables, tables
    /// cover what was allocated, the prefix cache's chains and order are whole, counters are right.
    /// For tests and simulation: it takes time in the size of the pool.
    pub fn check(&self) -> Result<(), String> {
        self.check_frames()?;
        self.check_blocks()?;
        self.check_sequences()?;
        self.check_entries()?;
        self.check_cached()?;
        self.check_windows()?;
        self.check_states()
    }

    /// Every slot of a state is free, an entry's or taken.
    fn check_states(&self) -> Result<(), String> {
        let slots = self
            .config
            .states
            .map_or(0..0, |s| s.first..s.first + s.count);
        let mut seen = HashSet::new();
        for slot in self.states.unused() {
            ensure!(
                slots.contains(slot) && seen.insert(*slot),
                "state {slot} is free twice"
            );
        }
        let mut kept = 0;
        for (slot, entry) in self.states.kept() {
            ensure!(
                slots.contains(&slot) && seen.insert(slot),
                "state {slot} is kept twice"
            );
            let found = self.index.get(entry).state.map(|state| state.slot);
            ensure!(found == Some(slot), "state {slot} is not its entry's");
            kept += 1;
        }
        let blocks = self.used().filter(|id| {
            let entry = self.blocks[*id].entry.some();
            let entry = entry.map(|entry| self.index.get(entry));
            entry.is_some_and(|entry| entry.block == *id && entry.state.is_some())
        });
        let found = blocks.count();
        ensure!(
            found == kept,
            "{kept} states are kept, entries have {found}"
        );
        Ok(())
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
        let owned = self.used().flat_map(|id| self.blocks.owned(id));
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

    /// The state of each block agrees with tables, sequences and cache.
    fn check_blocks(&self) -> Result<(), String> {
        let (mut refs, mut protections) = (HashMap::new(), HashMap::new());
        let (mut min_bits_counts, mut pins) = (HashMap::new(), HashMap::<BlockId, u32>::new());
        for row in self.seqs.iter() {
            let class = row.options.min_bits.class();
            for &id in &row.blocks {
                *refs.entry(id).or_insert(0) += 1;
                min_bits_counts.entry(id).or_insert([0; 4])[class] += 1;
            }
            let recent = row.recent_blocks().iter().copied();
            for id in recent.clone().chain(protected_blocks(row)[2]) {
                *pins.entry(id).or_insert(0) += 1;
            }
            recent.for_each(|id| *protections.entry(id).or_insert(0) += 1);
            let protected_blocks = protected_blocks(row).into_iter().flatten();
            protected_blocks.for_each(|id| *protections.entry(id).or_insert(0) += 1);
        }
        let mut empty = 0;
        let mut by_level = LevelCounts::new(self.config.levels.len());
        for id in self.used() {
            let block = &self.blocks[id];
            by_level.add(block);
            let claimed = min_bits_counts.remove(&id).unwrap_or_default();
            ensure!(
                block.min_bits_counts == claimed,
                "{id} is claimed as {claimed:?}: {block:?}"
            );
            let pinned = pins.remove(&id).unwrap_or(0);
            ensure!(block.pins == pinned, "{id} has {pinned} pins: {block:?}");
            if self.config.shrinks() {
                let queue = self.queue_of(id);
                ensure!(
                    block.queued == queue,
                    "{id} belongs in {queue:?}: {block:?}"
                );
            }
            let bits = self.config.levels.level(block.level).lowest_bits;
            let claim = block.min_bits_counts.iter().position(|&n| n > 0);
            let lowest = claim.map_or(0, |class| MinBits::CLASSES[class].0);
            ensure!(
                block.bits <= bits && block.bits >= lowest,
                "{id} is at {bits} bits: {block:?}"
            );
            ensure!(
                block.input_bits >= lowest,
                "{id} was computed from less than {lowest} bits: {block:?}"
            );
            let (held, protected_blocks) = (refs.remove(&id), protections.remove(&id));
            ensure!(
                block.refs == held.unwrap_or(0),
                "{id} has {held:?} holders: {block:?}"
            );
            ensure!(
                block.protections == protected_blocks.unwrap_or(0),
                "{id} has {protected_blocks:?} protections: {block:?}"
            );
            let frames = u32::from(block.frames);
            if block.sealed {
                let windowed = match block.is_trimmed {
                    true => self.config.windowed_frames(block.level),
                    false => 0,
                };
                let expected = self.config.level_frames(block.level) - windowed;
                ensure!(
                    frames == expected,
                    "{id} is sealed and needs {expected}: {block:?}"
                );
            } else {
                let filled = usize::from(block.filled);
                let room = frames / self.config.frames_per_sub_block * SUB_BLOCK_TOKENS as u32;
                ensure!(
                    filled <= room as usize,
                    "{id} holds more than fits: {block:?}"
                );
                ensure!(!block.is_trimmed, "{id} is trimmed but open: {block:?}");
                ensure!(
                    block.level == 0,
                    "{id} shrank before it was sealed: {block:?}"
                );
                ensure!(
                    block.entry == EntryId::NONE,
                    "{id} is published but open: {block:?}"
                );
                empty += u64::from(room) - filled as u64;
            }
        }
        ensure!(
            refs.is_empty(),
            "tables name blocks that are not in use: {refs:?}"
        );
        ensure!(
            by_level == *self.blocks.by_level(),
            "blocks are at levels {by_level:?}"
        );
        let queued = self.queues.cached.len() + self.queues.live.len();
        let queues = self.used().map(|id| self.blocks[id].queued);
        let expected = queues.filter(|queue| *queue != Queued::No).count();
        ensure!(queued == expected, "{queued} are queued, not {expected}");
        let live = self
            .used()
            .map(|id| (&self.blocks[id], self.blocks[id].queued));
        let live = live.filter(|(_, queue)| matches!(queue, Queued::Live(_)));
        let held = |queue| match queue {
            Queued::Live(rank) => u64::from(rank.held),
            Queued::Cached(_) | Queued::No => 0,
        };
        let live: u64 = live.map(|(_, queue)| held(queue)).sum();
        ensure!(
            live == self.queues.live_frames,
            "{live} frames can shrink further"
        );
        let counted = self.blocks.unused_tokens();
        ensure!(
            counted == empty,
            "{empty} tokens are unused, but {counted} are counted"
        );
        Ok(())
    }

    /// Each sequence has blocks for its tokens, and its full blocks are a published chain.
    fn check_sequences(&self) -> Result<(), String> {
        for row in self.seqs.iter() {
            let Sequence {
                id,
                committed,
                allocated,
                ..
            } = *row;
            ensure!(self.seqs.get(id).id == id, "{id} is not found by its id");
            ensure!(
                committed <= allocated,
                "{id}: {committed} committed of {allocated} allocated"
            );
            let (len, covering) = (row.blocks.len(), allocated.div_ceil(BLOCK_TOKENS));
            ensure!(
                len == covering,
                "{id} has {len} blocks for {allocated} tokens"
            );
            for (index, &block) in row.blocks.iter().enumerate() {
                let state = &self.blocks[block];
                let is_full = index < row.full_blocks();
                ensure!(
                    !is_full || state.sealed,
                    "{id}: {block} is full and not sealed"
                );
                let tokens = (allocated - index * BLOCK_TOKENS).min(BLOCK_TOKENS);
                let needed = sub_block_frames(&self.config, tokens);
                ensure!(
                    state.level > 0 || state.is_trimmed || u32::from(state.frames) >= needed,
                    "{id}: {block} has too few frames for {tokens} tokens: {state:?}",
                );
                ensure!(
                    is_full || state.level == 0,
                    "{id}: {block} shrank but is not full"
                );
                if is_full && self.config.prefix_cache && !row.options.is_private {
                    self.check_link(row, index)?;
                }
            }
        }
        Ok(())
    }

    /// The parent of full block `index`'s entry is the entry of the block before.
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

    /// Entries are found by their content, agree with their blocks, and have a living parent.
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
            let duplicates: Vec<BlockId> = entry.duplicates.iter(&self.blocks).collect();
            ensure!(
                duplicates.len() == entry.duplicates.len() as usize,
                "{id:?} miscounts {duplicates:?}"
            );
            for &block in duplicates.iter().chain([&entry.block]) {
                let state = &self.blocks[block];
                ensure!(
                    state.sealed && state.entry == id,
                    "{block} is not of {id:?}: {state:?}"
                );
                ensure!(
                    self.blocks.tokens(block) == tokens,
                    "{block} is no duplicate of {id:?}"
                );
                let is_cached = block == entry.block && duplicates.is_empty();
                ensure!(
                    state.refs > 0 || is_cached,
                    "{block} of {id:?} has no holder: {state:?}"
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

    /// Cached blocks are those without holders, no live block is below one, and children are
    /// evicted before their parents.
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
            "cached {listed:?}, but without holders are {unheld:?}"
        );
        ensure!(
            by_age.len() == self.cached.len() as usize,
            "the list of ages has a loop"
        );
        let (mut frames, mut busy) = (0, BTreeMap::new());
        let mut by_level = LevelCounts::new(self.config.levels.len());
        for &id in &by_age {
            let block = &self.blocks[id];
            by_level.add(block);
            frames += u32::from(block.frames);
            if block.busy_until > self.epochs.done() {
                *busy.entry(block.busy_until).or_insert(0) += u32::from(block.frames);
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
        let evictable = self.cached.frames();
        let counted = evictable.frames();
        ensure!(
            frames == counted,
            "{frames} frames are cached, but {counted} are counted"
        );
        ensure!(
            by_level == *self.cached.by_level(),
            "cached blocks are at levels {by_level:?}"
        );
        let counted: BTreeMap<_, _> = evictable.busy().filter(|&(_, n)| n > 0).collect();
        ensure!(
            busy == counted,
            "frames cool as {busy:?}, but are counted as {counted:?}"
        );
        let idle = frames - busy.values().sum::<u32>();
        ensure!(idle == evictable.idle(), "{idle} frames are evictable");
        Ok(())
    }

    /// Blocks count the sequences that see them, hidden ones are those that nobody sees, and what
    /// a sequence sees is whole.
    fn check_windows(&self) -> Result<(), String> {
        let mut viewers = HashMap::<BlockId, u32>::new();
        for row in self.seqs.iter() {
            let (id, from) = (row.id, self.config.first_visible(row.committed));
            ensure!(
                row.window_from == from,
                "{id} sees blocks from {from} on: {row:?}"
            );
            for &block in &row.blocks[from..] {
                *viewers.entry(block).or_insert(0) += 1;
                let state = &self.blocks[block];
                ensure!(
                    !state.is_trimmed,
                    "{id} sees {block}, which is trimmed: {state:?}"
                );
            }
        }
        let (mut windowed, mut busy) = (0, BTreeMap::new());
        let mut by_age = Vec::new();
        for id in self.used() {
            let block = &self.blocks[id];
            let seen = viewers.get(&id).copied().unwrap_or(0);
            ensure!(block.viewers == seen, "{id} has {seen} viewers: {block:?}");
            let should = self.should_hide(id);
            ensure!(
                (block.hidden_at > 0) == should,
                "{id} should be hidden: {should}: {block:?}"
            );
            if should {
                let frames = self.config.windowed_frames(block.level);
                by_age.push((block.hidden_at, id));
                windowed += frames;
                if block.busy_until > self.epochs.done() {
                    *busy.entry(block.busy_until).or_insert(0) += frames;
                }
            }
            let frames = self.blocks.frames(id).iter().enumerate();
            for (at, frame) in frames {
                let is_given = block.is_trimmed && self.config.is_windowed(block.level, at);
                ensure!(
                    (*frame == NO_FRAME) == is_given,
                    "frame {at} of {id} should be given back: {is_given}: {block:?}"
                );
            }
        }
        let mut by_level = vec![0; self.config.levels.len()];
        for (_, id) in &by_age {
            by_level[usize::from(self.blocks[*id].level)] += 1;
        }
        ensure!(
            by_level == self.hidden.by_level(),
            "hidden blocks are at levels {by_level:?}"
        );
        by_age.sort_unstable();
        let listed: Vec<_> = self.hidden.iter().collect();
        ensure!(by_age == listed, "{by_age:?} are hidden, not {listed:?}");
        let evictable = self.hidden.windowed();
        let counted: BTreeMap<_, _> = evictable.busy().filter(|&(_, n)| n > 0).collect();
        ensure!(
            (windowed, &busy) == (evictable.frames(), &counted),
            "{windowed} frames are hidden, {busy:?} busy: {evictable:?}"
        );
        Ok(())
    }
}
