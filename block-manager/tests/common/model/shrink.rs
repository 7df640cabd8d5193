//! What may shrink, in which order, and shrinking.

use std::cmp::Reverse;

use ebb_block_manager::{BLOCK_TOKENS, Pressure, precision::MinBits};

use super::{Block, Key, Model, Wait};

/// What the cache keeps of a block: depth, level, frames.
pub(crate) type CachedSummary = (u32, u16, u32);
/// A shrink: block, and levels before and after.
pub(crate) type Job = (Key, u16, u16);

/// A shrink whose steps are not over.
#[derive(Clone, Debug)]
pub(super) struct Under {
    pub(super) to: u16,
    pub(super) frames: u32,
    pub(super) wait: Wait,
    issued: u64,
    failed: bool,
}

impl Block {
    pub(super) fn retire(&mut self, step: u64) {
        self.wait.steps.remove(&step);
        if let Some(under) = &mut self.shrink {
            under.wait.steps.remove(&step);
        }
    }
}

impl Model {
    /// Cached blocks, least recently used first.
    pub(crate) fn cached_blocks(&self) -> Vec<CachedSummary> {
        let cold = self.by_age.iter().map(|key| &self.blocks[key]);
        cold.map(|b| {
            (
                (b.prefix.len() / BLOCK_TOKENS - 1) as u32,
                b.level,
                b.frames,
            )
        })
        .collect()
    }

    /// Indices of the unprotected blocks of a sequence: full for all their holders, and neither the
    /// first nor the last full block of one.
    pub(crate) fn unprotected(&self, id: u64) -> Vec<usize> {
        let blocks = &self.seqs[&id].blocks;
        (0..blocks.len())
            .filter(|&index| !self.is_protected(blocks[index]))
            .collect()
    }

    fn is_protected(&self, key: Key) -> bool {
        self.seqs.values().any(|seq| {
            let full = seq.committed.len() / BLOCK_TOKENS;
            let at = seq.blocks.iter().position(|&block| block == key);
            at.is_some_and(|at| at == 0 || at + 1 >= full)
        })
    }

    fn bits(&self, level: u16) -> u8 {
        self.config.levels.level(level).lowest_bits
    }

    /// The highest min_bits that a block satisfies, once shrinks under way are done.
    pub(super) fn servable_bits(&self, key: Key) -> u8 {
        let block = &self.blocks[&key];
        let level = block.shrink.as_ref().map_or(block.level, |under| under.to);
        self.bits(level).min(block.input_bits)
    }

    /// The highest min_bits of the holders of a block.
    fn min_bits(&self, key: Key) -> MinBits {
        let block = &self.blocks[&key];
        let mut min_bits = MinBits::ANY;
        for seq in self.seqs.values() {
            let full = seq.committed.len() / BLOCK_TOKENS;
            if let Some(at) = seq.blocks.iter().position(|&block| block == key) {
                min_bits = min_bits.max(seq.options.min_bits);
                if at >= full && seq.committed.len() > at * BLOCK_TOKENS {
                    return MinBits::SIXTEEN;
                }
            }
        }
        if block.is_first {
            min_bits = min_bits.max(self.config.sink);
        }
        if self.is_protected(key) {
            min_bits = min_bits.max(self.config.protected);
        }
        min_bits
    }

    fn next_target(&self, key: Key) -> Option<u16> {
        let block = &self.blocks[&key];
        let is_free = block.sealed && !block.cannot_shrink && block.shrink.is_none();
        let next = self
            .levels_of(key)
            .next_target(block.level, self.min_bits(key));
        next.filter(|_| is_free)
    }

    pub(crate) fn note_read(&mut self, id: u64) {
        let blocks = self.seqs[&id].blocks.iter();
        let lowest = blocks.map(|key| self.bits(self.blocks[key].level)).min();
        let seq = self.seqs.get_mut(&id).expect("alive");
        seq.lowest = seq.lowest.min(lowest.unwrap_or(16));
    }

    /// Frames that shrinks under way write.
    pub(crate) fn shrinking(&self) -> u32 {
        let under = self.blocks.values().filter_map(|b| b.shrink.as_ref());
        under.map(|under| under.frames).sum()
    }

    /// Shrinks the `index`-th block of a sequence, or the `index`-th least recently used one.
    pub(crate) fn shrink(&mut self, id: Option<u64>, index: usize) -> Result<Option<Job>, u32> {
        let key = id.map_or_else(|| self.by_age[index], |id| self.seqs[&id].blocks[index]);
        let Some(to) = self.next_target(key) else {
            return Ok(None);
        };
        let frames = self.frames_at(key, to);
        if frames > self.memory.free {
            return Err(frames - self.memory.free);
        }
        Ok(Some(self.issue(key, to)))
    }

    fn frames_at(&self, key: Key, level: u16) -> u32 {
        self.levels_of(key).level(level).size.frames
    }

    fn issue(&mut self, key: Key, to: u16) -> Job {
        self.trim_if_hidden(key);
        let frames = self.frames_at(key, to);
        self.memory.free -= frames;
        self.shrinks += 1;
        self.births += 1;
        let issued = self.births;
        let wait = Wait {
            planned: true,
            ..self.wait_now()
        };
        let block = self.blocks.get_mut(&key).expect("in use");
        self.shrunk_bytes += u64::from(block.frames) * self.config.frame_bytes;
        block.wait = wait.clone();
        block.shrink = Some(Under {
            to,
            frames,
            wait,
            issued,
            failed: false,
        });
        (key, block.level, to)
    }

    pub(crate) fn fail(&mut self, key: Key, for_good: bool) {
        let under = self.blocks.get_mut(&key);
        if let Some(block) = under.filter(|block| block.shrink.is_some()) {
            block.shrink.as_mut().expect("just seen").failed = true;
            block.cannot_shrink |= for_good;
        }
    }

    pub(super) fn finish_shrinks(&mut self) {
        let now = self.wait_now();
        let under = |key: &Key| self.blocks[key].shrink.as_ref();
        let mut keys: Vec<Key> = self.blocks.keys().copied().collect();
        keys.retain(|key| under(key).is_some_and(|under| under.wait.is_over()));
        keys.sort_by_key(|key| under(key).map(|under| under.issued));
        for key in &keys {
            let block = self.blocks.get_mut(key).expect("in use");
            let is_over = |under: &mut Under| under.wait.is_over();
            let Some(under) = block.shrink.take_if(is_over) else {
                continue;
            };
            if under.failed {
                self.memory.give(Wait::default(), under.frames);
                continue;
            }
            let is_cached = self.by_age.contains(key);
            let wait = if is_cached {
                block.wait.clone()
            } else {
                now.clone()
            };
            self.memory.give(wait, block.frames);
            (block.frames, block.level) = (under.frames, under.to);
        }
        self.look_at_windows(&keys);
    }

    /// The choice of shrinks, by its definition: look at all blocks for each shrink.
    pub(crate) fn shrink_for(&mut self, pressure: &Pressure) -> Vec<Job> {
        let mut jobs = Vec::new();
        if self.config.levels.len() == 1 {
            return jobs;
        }
        let free = self.memory.free;
        let beyond =
            |model: &Self| (model.memory.free + model.evictable()).saturating_sub(pressure.decodes);
        let mut allowed = beyond(self)
            .min(free)
            .max(free.min(self.config.shrink_reserve()));
        for live in [false, true] {
            if live {
                allowed = allowed.max(beyond(self));
                self.over = self.is_over(pressure);
            } else {
                self.begun.1 = self.has_begun(self.begun.1, true, pressure);
            }
            let can_shrink = |key: &Key| self.next_target(*key).is_some();
            let live_give = self.begun.1 && self.live_in_order().iter().any(can_shrink);
            loop {
                let was = if live { self.begun.1 } else { self.begun.0 };
                let now = self.has_begun(was, live, pressure);
                *(if live {
                    &mut self.begun.1
                } else {
                    &mut self.begun.0
                }) = now;
                let candidates = if live {
                    self.live_in_order()
                } else {
                    self.by_age.clone()
                };
                let mut candidates = candidates.into_iter();
                let first = candidates.find_map(|key| Some((key, self.next_target(key)?)));
                let goes = if live {
                    now || self.over
                } else {
                    now && pressure.shrinks_cached && !live_give
                };
                let Some((key, mut to)) = first.filter(|_| goes) else {
                    break;
                };
                let even_share = self.even_share(pressure);
                while live
                    && self.frames_at(key, to) > even_share
                    && let Some(further) = self.levels_of(key).next_target(to, self.min_bits(key))
                {
                    to = further;
                }
                let bytes = u64::from(self.held_frames(key)) * self.config.frame_bytes;
                let frames = self.frames_at(key, to);
                let is_much =
                    self.shrunk_bytes > 0 && self.shrunk_bytes + bytes > pressure.bytes_max;
                if is_much || frames > allowed {
                    break;
                }
                allowed -= frames;
                while live && self.memory.free < frames {
                    self.evict_one();
                }
                jobs.push(self.issue(key, to));
                if live {
                    self.over = self.is_over(pressure);
                }
            }
        }
        jobs
    }

    /// Frames that each live block is left with if those that can shrink give up evenly what is
    /// missing at the high watermark, or what they hold too much.
    fn even_share(&self, pressure: &Pressure) -> u32 {
        let blocks = self.live_in_order().into_iter();
        let frames = blocks.filter(|&key| self.next_target(key).is_some());
        let frames: Vec<i64> = frames.map(|key| self.held_frames(key).into()).collect();
        let mut short = 0;
        if self.begun.1 {
            short = i64::from(pressure.high.max(pressure.low)) - self.left(true, pressure);
        }
        if self.over {
            let between = i64::from(pressure.high) - i64::from(pressure.low);
            let until = (i64::from(pressure.live_max) - between.max(0)).max(0);
            short = short.max(self.held() - until);
        }
        let left = frames.iter().sum::<i64>() - short.max(0);
        (left.max(0) / (frames.len() as i64).max(1)) as u32
    }

    /// Whether frames are short once the steps in flight are done: frames without an owner, and for
    /// live blocks also those of cached ones.
    fn has_begun(&self, was: bool, live: bool, pressure: &Pressure) -> bool {
        let left = self.left(live, pressure);
        left < i64::from(pressure.low) || (was && left < i64::from(pressure.high))
    }

    fn left(&self, live: bool, pressure: &Pressure) -> i64 {
        let mut frames = self.memory.free + self.memory.retiring();
        for (key, block) in &self.blocks {
            let is_cached = self.by_age.contains(key);
            let under = block.shrink.as_ref().map_or(0, |under| under.frames);
            frames += match (is_cached && live, under) {
                (true, under) => block.frames + under,
                (false, 0) if live => self.hidden_frames(*key),
                (false, 0) => 0,
                (false, _) => block.frames,
            };
        }
        let left = i64::from(frames.saturating_sub(self.config.shrink_reserve()));
        left - i64::from(pressure.demand)
    }

    /// Frames of live blocks once the steps in flight are done.
    fn held(&self) -> i64 {
        let live = self
            .blocks
            .iter()
            .filter(|(key, _)| self.holders(**key) > 0);
        let frames = live.map(|(key, block)| match &block.shrink {
            Some(under) => under.frames,
            None => self.held_frames(*key),
        });
        frames.map(i64::from).sum()
    }

    /// Whether live blocks hold more than they may, or did and are not yet below by the distance
    /// between the watermarks.
    fn is_over(&self, pressure: &Pressure) -> bool {
        let (most, held) = (i64::from(pressure.live_max), self.held());
        let between = i64::from(pressure.high.saturating_sub(pressure.low));
        held > most || (self.over && held > (most - between).max(0))
    }

    fn live_in_order(&self) -> Vec<Key> {
        let live = self
            .blocks
            .keys()
            .copied()
            .filter(|&key| self.holders(key) > 0);
        let mut live: Vec<Key> = live.collect();
        live.sort_by_key(|key| {
            let block = &self.blocks[key];
            let edge = self.is_protected(*key);
            (
                Reverse(block.priority),
                Reverse(self.config.level_frames(block.level)),
                edge,
                block.sealed_at,
            )
        });
        live
    }
}
