//! The pool as one would write it without caring for speed: whole prefixes as keys, sets of steps
//! instead of epochs, every count recounted. It predicts all that the real one says, except which
//! frame and block numbers it picks.

mod memory;
mod shrink;
mod window;

use std::collections::{BTreeMap, BTreeSet};

use ebb_block_manager::{
    BLOCK_TOKENS, PoolConfig, SUB_BLOCK_TOKENS, SeqOptions, precision::MinBits,
};

use memory::{Memory, Wait};

pub(crate) type Key = u64;

#[derive(Clone, Debug)]
struct Block {
    frames: u32,
    level: u16,
    sealed: bool,
    /// All tokens up to the block's end, once sealed.
    prefix: Vec<u32>,
    wait: Wait,
    /// Order of sealing.
    sealed_at: u64,
    /// Lowest bits that it was computed from.
    input_bits: u8,
    priority: i32,
    is_first: bool,
    cannot_shrink: bool,
    shrink: Option<shrink::Under>,
    trimmed: bool,
    /// Order of becoming cached.
    cached_at: u64,
}

#[derive(Clone, Debug)]
struct Sequence {
    committed: Vec<u32>,
    allocated: usize,
    blocks: Vec<Key>,
    options: SeqOptions,
    /// Lowest bits that it or its cached beginning was computed from.
    lowest: u8,
}

/// All blocks with one content, those that came first in front; the first is canonical.
type Copies = Vec<Key>;

/// The naive pool.
#[derive(Debug)]
pub(crate) struct Model {
    config: PoolConfig,
    next_key: Key,
    blocks: BTreeMap<Key, Block>,
    seqs: BTreeMap<u64, Sequence>,
    published: BTreeMap<Vec<u32>, Copies>,
    /// Blocks that only the cache keeps, least recently used first.
    by_age: Vec<Key>,
    /// Blocks that nobody sees, and the order in which they became that.
    hidden: Vec<(u64, Key)>,
    in_flight: BTreeSet<u64>,
    memory: Memory,
    /// Copies that the next step has to do: to which block, how many frames.
    copies: Vec<(Key, u32)>,
    /// Shrinks that the next step has to do.
    shrinks: u32,
    shrunk_bytes: u64,
    births: u64,
    begun: (bool, bool),
    over: bool,
    /// How often a duplicate became the canonical block.
    pub(crate) better: u64,
    /// How often a block became hidden, and was trimmed.
    pub(crate) hid: u64,
    pub(crate) trimmed: u64,
}

impl Model {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            next_key: 0,
            blocks: BTreeMap::new(),
            seqs: BTreeMap::new(),
            published: BTreeMap::new(),
            by_age: Vec::new(),
            hidden: Vec::new(),
            in_flight: BTreeSet::new(),
            memory: Memory::new(config.frames),
            copies: Vec::new(),
            shrinks: 0,
            shrunk_bytes: 0,
            births: 0,
            begun: (false, false),
            over: false,
            better: 0,
            hid: 0,
            trimmed: 0,
            config,
        }
    }

    fn holders(&self, key: Key) -> usize {
        self.seqs
            .values()
            .filter(|seq| seq.blocks.contains(&key))
            .count()
    }

    fn open_frames(&self, tokens: usize) -> u32 {
        tokens.div_ceil(SUB_BLOCK_TOKENS) as u32 * self.config.frames_per_sub_block
    }

    fn wait_now(&self) -> Wait {
        Wait {
            steps: self.in_flight.clone(),
            planned: false,
        }
    }

    fn evictable(&self) -> u32 {
        let is_idle = |key: &&Key| self.blocks[*key].wait.is_over();
        let cached = self.by_age.iter().filter(is_idle);
        let cached: u32 = cached.map(|key| self.blocks[key].frames).sum();
        let hidden = self.hidden.iter().map(|(_, key)| key).filter(is_idle);
        let hidden: u32 = hidden.map(|key| self.hidden_frames(*key)).sum();
        cached + hidden
    }

    pub(crate) fn free(&self) -> u32 {
        self.memory.free
    }

    pub(crate) fn retiring(&self) -> u32 {
        self.memory.retiring()
    }

    pub(crate) fn available(&self) -> u32 {
        (self.memory.free + self.evictable()).saturating_sub(self.reserve_needed_now())
    }

    fn reserve_needed_now(&self) -> u32 {
        let coming = self.memory.retiring() + self.shrinking();
        self.config.shrink_reserve().saturating_sub(coming)
    }

    /// The longest published prefix: tokens, and frames that sharing it makes unavailable.
    pub(crate) fn lookup(
        &self,
        tokens: &[u32],
        max_tokens: usize,
        min_bits: MinBits,
    ) -> (usize, u32) {
        let (mut found, mut chain) = (0, Vec::new());
        let max = tokens.len().min(max_tokens);
        while found + BLOCK_TOKENS <= max {
            let Some(copies) = self.published.get(&tokens[..found + BLOCK_TOKENS]) else {
                break;
            };
            if self.servable_bits(copies[0]) < min_bits.0 {
                break;
            }
            chain.push(copies[0]);
            found += BLOCK_TOKENS;
        }
        let is_whole = |blocks: &usize| {
            let seen = &chain[self.first_visible(blocks * BLOCK_TOKENS)..*blocks];
            seen.iter().all(|key| !self.blocks[key].trimmed)
        };
        let used = (0..=chain.len())
            .rev()
            .find(is_whole)
            .expect("nothing is whole");
        let first = self.first_visible(used * BLOCK_TOKENS);
        let revived = chain[..used].iter().zip(0..).map(|(key, at)| {
            let block = &self.blocks[key];
            let windowed = match block.trimmed {
                true => 0,
                false => self.windowed(block.level),
            };
            match (block.wait.is_over(), self.by_age.contains(key)) {
                (false, _) => 0,
                (true, true) if at < first => block.frames - windowed,
                (true, true) => block.frames,
                (true, false) if at < first => 0,
                (true, false) => self.hidden_frames(*key),
            }
        });
        (used * BLOCK_TOKENS, revived.sum())
    }

    pub(crate) fn create(
        &mut self,
        id: u64,
        tokens: &[u32],
        max_tokens: usize,
        options: SeqOptions,
    ) -> usize {
        let (found, _) = self.lookup(tokens, max_tokens, options.min_bits);
        let ends = (1..=found / BLOCK_TOKENS).map(|n| n * BLOCK_TOKENS);
        let blocks: Vec<Key> = ends.map(|end| self.published[&tokens[..end]][0]).collect();
        self.by_age.retain(|key| !blocks.contains(key));
        let mut lowest = 16;
        for key in &blocks {
            let block = self.blocks.get_mut(key).expect("in use");
            lowest = lowest.min(block.input_bits);
            block.priority = block.priority.min(options.priority);
        }
        let committed = tokens[..found].to_vec();
        self.seqs.insert(
            id,
            Sequence {
                committed,
                allocated: found,
                blocks: blocks.clone(),
                options,
                lowest,
            },
        );
        self.look_at_windows(&blocks);
        found
    }

    pub(crate) fn fork(&mut self, parent: u64, child: u64) {
        let mut seq = self.seqs[&parent].clone();
        seq.allocated = seq.committed.len();
        seq.blocks.truncate(seq.allocated.div_ceil(BLOCK_TOKENS));
        self.seqs.insert(child, seq);
    }

    /// Frames to be taken so that tokens `0..len` have memory, block by block.
    pub(crate) fn frames_needed(&self, id: u64, len: usize) -> u32 {
        let seq = &self.seqs[&id];
        let mut needed = 0;
        for index in seq.allocated / BLOCK_TOKENS..len.div_ceil(BLOCK_TOKENS) {
            let wanted = self.open_frames((len - index * BLOCK_TOKENS).min(BLOCK_TOKENS));
            let own = seq.blocks.get(index).filter(|key| self.is_own(**key));
            let has = own.map_or(0, |key| self.blocks[key].frames);
            needed += wanted.saturating_sub(has);
        }
        if len > seq.allocated { needed } else { 0 }
    }

    fn is_own(&self, key: Key) -> bool {
        self.holders(key) == 1 && !self.blocks[&key].sealed
    }

    /// Returns the missing frames if it does not fit.
    pub(crate) fn grow(&mut self, id: u64, len: usize) -> Result<(), u32> {
        let needed = self.frames_needed(id, len);
        if needed > self.available() {
            return Err(needed - self.available());
        }
        let seq = self.seqs[&id].clone();
        if len <= seq.allocated {
            return Ok(());
        }
        let mut let_go = Vec::new();
        let target = needed + self.reserve_needed_now();
        while needed > 0 && self.memory.free < target {
            self.evict_one();
        }
        for index in seq.allocated / BLOCK_TOKENS..len.div_ceil(BLOCK_TOKENS) {
            let wanted = self.open_frames((len - index * BLOCK_TOKENS).min(BLOCK_TOKENS));
            let key = match seq.blocks.get(index) {
                Some(&key) if self.is_own(key) => key,
                old => {
                    let key = self.add_block(seq.options.priority, index == 0);
                    let row = self.seqs.get_mut(&id).expect("alive");
                    match old {
                        Some(&old) => {
                            row.blocks[index] = key;
                            let copied = self.open_frames(seq.allocated % BLOCK_TOKENS);
                            self.copies.push((key, copied));
                            let_go.push(old);
                            self.may_be_read(old);
                            for key in [old, key] {
                                let block = self.blocks.get_mut(&key).expect("in use");
                                block.wait.planned = true;
                            }
                            self.dropped(old);
                        }
                        None => row.blocks.push(key),
                    }
                    key
                }
            };
            let block = self.blocks.get_mut(&key).expect("in use");
            self.memory.free -= wanted.saturating_sub(block.frames);
            block.frames = block.frames.max(wanted);
        }
        self.seqs.get_mut(&id).expect("alive").allocated = len;
        self.look_at_windows(&let_go);
        Ok(())
    }

    fn add_block(&mut self, priority: i32, is_first: bool) -> Key {
        self.next_key += 1;
        let block = Block {
            frames: 0,
            level: 0,
            sealed: false,
            prefix: vec![],
            wait: Wait::default(),
            sealed_at: 0,
            input_bits: 16,
            priority,
            is_first,
            cannot_shrink: false,
            shrink: None,
            trimmed: false,
            cached_at: 0,
        };
        self.blocks.insert(self.next_key, block);
        self.next_key
    }

    /// Evicts the least recently used block that no step touches, and its descendants, or takes the
    /// windowed frames of one that has been hidden for longer.
    fn evict_one(&mut self) {
        let is_idle = |key: &Key| self.blocks[key].wait.is_over();
        let cached = self
            .by_age
            .iter()
            .map(|&key| (self.blocks[&key].cached_at, key, false));
        let hidden = self.hidden.iter().map(|&(at, key)| (at, key, true));
        let idle = cached.chain(hidden).filter(|(_, key, _)| is_idle(key));
        let (_, victim, is_hidden) = idle.min().expect("something is evictable");
        if is_hidden {
            return self.trim(victim);
        }
        let prefix = self.blocks[&victim].prefix.clone();
        let gone: Vec<Key> = (self.published.iter())
            .filter(|(chain, _)| chain.starts_with(&prefix))
            .flat_map(|(_, copies)| copies.clone())
            .collect();
        for key in gone {
            assert!(
                self.by_age.contains(&key),
                "a live block hangs below an evicted one"
            );
            self.by_age.retain(|&cached| cached != key);
            self.published.remove(&self.blocks[&key].prefix);
            self.free_block(key);
        }
    }

    fn free_block(&mut self, key: Key) {
        let before = self.copies.len();
        self.copies.retain(|&(copy, _)| copy != key);
        if self.copies.len() < before && self.copies.is_empty() && self.shrinks == 0 {
            self.blocks
                .values_mut()
                .for_each(|block| block.wait.planned = false);
            self.memory.reconsider(|wait| wait.planned = false);
        }
        let block = self.blocks.remove(&key).expect("in use");
        if let Some(under) = block.shrink {
            self.memory.give(under.wait, under.frames);
        }
        self.memory.give(block.wait, block.frames);
    }

    /// Frames that the next step has to copy.
    pub(crate) fn copied(&self) -> u32 {
        self.copies.iter().map(|&(_, frames)| frames).sum()
    }

    pub(crate) fn commit(&mut self, id: u64, tokens: &[u32]) {
        let before = self.first_visible(self.seqs[&id].committed.len());
        self.commit_tokens(id, tokens);
        let seq = &self.seqs[&id];
        let passed = seq.blocks[before..self.first_visible(seq.committed.len())].to_vec();
        passed.iter().for_each(|key| self.may_be_read(*key));
        self.look_at_windows(&passed);
    }

    fn commit_tokens(&mut self, id: u64, tokens: &[u32]) {
        for &token in tokens {
            let seq = self.seqs.get_mut(&id).expect("alive");
            seq.committed.push(token);
            if !seq.committed.len().is_multiple_of(BLOCK_TOKENS) {
                continue;
            }
            let key = seq.blocks[seq.committed.len() / BLOCK_TOKENS - 1];
            let block = self.blocks.get_mut(&key).expect("in use");
            block.sealed = true;
            block.prefix = seq.committed.clone();
            self.births += 1;
            (block.sealed_at, block.input_bits) = (self.births, seq.lowest);
            if self.config.prefix_cache {
                let copies = self.published.entry(seq.committed.clone()).or_default();
                copies.push(key);
                // A cached block is not needed beside a live one with the same tokens.
                if let Some(at) = self.by_age.iter().position(|cold| *cold == copies[0]) {
                    copies.remove(0);
                    let cold = self.by_age.remove(at);
                    self.free_block(cold);
                    continue;
                }
                let (first, last) = (copies[0], copies.len() - 1);
                if last > 0 && self.worth(key) > self.worth(first) {
                    self.published
                        .get_mut(&self.seqs[&id].committed)
                        .expect("just published")
                        .swap(0, last);
                    self.better += 1;
                }
            }
        }
    }

    pub(crate) fn release(&mut self, id: u64) {
        let seq = self.seqs.remove(&id).expect("alive");
        for key in &seq.blocks[self.first_visible(seq.committed.len())..] {
            self.may_be_read(*key);
        }
        for &key in seq.blocks.iter().rev() {
            self.dropped(key);
            self.look_at_windows(&[key]);
        }
    }

    /// A sequence no longer holds the block.
    fn dropped(&mut self, key: Key) {
        if self.holders(key) > 0 {
            return;
        }
        let wait = self.wait_now();
        let block = self.blocks.get_mut(&key).expect("in use");
        block.wait.steps.extend(wait.steps);
        let prefix = block.prefix.clone();
        block.priority = if prefix.is_empty() { 0 } else { i32::MAX };
        let best = self.best_twin(&prefix, key);
        match self.published.get_mut(&prefix) {
            Some(copies) if copies.contains(&key) && copies.len() == 1 => {
                self.births += 1;
                self.blocks.get_mut(&key).expect("in use").cached_at = self.births;
                self.by_age.push(key);
            }
            Some(copies) => {
                if copies.first() == Some(&key)
                    && let Some(best) = best
                {
                    copies.retain(|&other| other != best);
                    copies[0] = best;
                }
                copies.retain(|&other| other != key);
                self.free_block(key);
            }
            None => self.free_block(key),
        }
    }

    /// The duplicate that can serve most requests.
    fn best_twin(&self, prefix: &[u32], first: Key) -> Option<Key> {
        let copies = self.published.get(prefix)?;
        let duplicates = copies.iter().copied().filter(|&key| key != first);
        duplicates.rev().max_by_key(|&key| self.worth(key))
    }

    pub(crate) fn releasable(&self, id: u64) -> u32 {
        let own = self.seqs[&id]
            .blocks
            .iter()
            .filter(|key| self.holders(**key) == 1);
        own.map(|key| self.held_frames(*key)).sum()
    }

    pub(crate) fn begin(&mut self, step: u64) {
        self.in_flight.insert(step);
        self.copies.clear();
        (self.shrinks, self.shrunk_bytes) = (0, 0);
        let blocks = self.blocks.values_mut().flat_map(|block| {
            let under = block.shrink.as_mut().map(|under| &mut under.wait);
            under.into_iter().chain([&mut block.wait])
        });
        for wait in self.memory.waits().chain(blocks) {
            if std::mem::take(&mut wait.planned) {
                wait.steps.insert(step);
            }
        }
    }

    pub(crate) fn retire(&mut self, step: u64) {
        self.in_flight.remove(&step);
        self.blocks
            .values_mut()
            .for_each(|block| block.retire(step));
        self.finish_shrinks();
        self.memory.reconsider(|wait| _ = wait.steps.remove(&step));
    }

    pub(crate) fn committed(&self, id: u64) -> usize {
        self.seqs[&id].committed.len()
    }

    pub(crate) fn allocated(&self, id: u64) -> usize {
        self.seqs[&id].allocated
    }

    /// Published blocks beside the ones that later prompts share.
    pub(crate) fn duplicates(&self) -> u64 {
        self.published
            .values()
            .map(|copies| copies.len() as u64 - 1)
            .sum()
    }

    pub(crate) fn published(&self) -> u32 {
        self.published.len() as u32
    }

    /// Frames of cached blocks, of blocks that sequences hold, and hidden ones.
    pub(crate) fn cached_live_hidden(&self) -> (u32, u32, u32) {
        let frames = |(key, _): (&Key, &Block)| self.held_frames(*key);
        let (cached, live): (Vec<_>, Vec<_>) = self
            .blocks
            .iter()
            .partition(|(key, _)| self.by_age.contains(key));
        (
            cached.into_iter().map(frames).sum(),
            live.into_iter().map(frames).sum(),
            self.hidden
                .iter()
                .map(|(_, key)| self.hidden_frames(*key))
                .sum(),
        )
    }
}
