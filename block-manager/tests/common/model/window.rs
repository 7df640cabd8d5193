//! Sliding windows: which blocks nobody sees, and what is taken of them.

use ebb_block_manager::{BLOCK_TOKENS, precision::LevelTable};

use super::{Key, Model};

impl Model {
    /// The first block of which the token behind `committed` ones sees something in all layers.
    pub(super) fn first_visible(&self, committed: usize) -> usize {
        let Some(window) = &self.config.window else {
            return 0;
        };
        let tokens = 0..=committed;
        let seen = tokens.rev().take(window.tokens as usize).last();
        seen.expect("it sees itself") / BLOCK_TOKENS
    }

    /// Whether a sequence that holds a block has it in its window.
    fn is_seen(&self, key: Key) -> bool {
        self.seqs.values().any(|seq| {
            let visible = &seq.blocks[self
                .first_visible(seq.committed.len())
                .min(seq.blocks.len())..];
            visible.contains(&key)
        })
    }

    /// Hides or shows blocks, these in front and in this order.
    pub(super) fn look_at_windows(&mut self, first: &[Key]) {
        let others: Vec<Key> = self.blocks.keys().copied().collect();
        for &key in first.iter().chain(&others) {
            let Some(block) = self.blocks.get(&key) else {
                continue;
            };
            let is_free = block.sealed && block.shrink.is_none() && !block.trimmed;
            let has_some = self.windowed(block.level) > 0;
            let should = is_free && has_some && self.holders(key) > 0 && !self.is_seen(key);
            if !should {
                self.hidden.retain(|(_, hidden)| *hidden != key);
            } else if !self.is_hidden(key) {
                self.births += 1;
                self.hidden.push((self.births, key));
                self.hid += 1;
            }
        }
        let blocks = &self.blocks;
        self.hidden.retain(|(_, key)| blocks.contains_key(key));
    }

    fn is_hidden(&self, key: Key) -> bool {
        self.hidden.iter().any(|(_, hidden)| *hidden == key)
    }

    /// A sequence no longer sees a block; steps in flight may.
    pub(super) fn may_be_read(&mut self, key: Key) {
        let now = self.wait_now();
        let block = self.blocks.get_mut(&key).expect("in use");
        block.wait.steps.extend(now.steps);
    }

    /// Takes the windowed frames of a hidden block.
    pub(super) fn trim(&mut self, key: Key) {
        self.hidden.retain(|(_, hidden)| *hidden != key);
        let windowed = self.windowed(self.blocks[&key].level);
        let block = self.blocks.get_mut(&key).expect("in use");
        block.trimmed = true;
        block.frames -= windowed;
        self.memory.give(block.wait.clone(), windowed);
        self.trimmed += 1;
    }

    pub(super) fn trim_if_hidden(&mut self, key: Key) {
        if self.is_hidden(key) {
            self.trim(key);
        }
    }

    /// Windowed frames at a level.
    pub(super) fn windowed(&self, level: u16) -> u32 {
        let all = self.config.level_frames(level);
        let window = self.config.window.as_ref();
        window.map_or(0, |w| all - w.kept.level(level).size.frames)
    }

    pub(super) fn hidden_frames(&self, key: Key) -> u32 {
        match self.is_hidden(key) {
            true => self.windowed(self.blocks[&key].level),
            false => 0,
        }
    }

    pub(super) fn held_frames(&self, key: Key) -> u32 {
        self.blocks[&key].frames - self.hidden_frames(key)
    }

    /// What a block takes at each level, without what nobody sees.
    pub(super) fn levels_of(&self, key: Key) -> &LevelTable {
        match &self.config.window {
            Some(window) if self.blocks[&key].trimmed || self.is_hidden(key) => &window.kept,
            _ => &self.config.levels,
        }
    }

    pub(super) fn worth(&self, key: Key) -> (u8, bool) {
        (self.servable_bits(key), !self.blocks[&key].trimmed)
    }
}
