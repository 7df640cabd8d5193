//! Sliding windows: which blocks lie behind those of all their sequences, and what becomes of them.

use super::BlockManager;
use crate::{BlockId, Slot, hidden::HiddenBlock, precision::LevelTable};

impl BlockManager {
    /// Whether blocks have frames that a window lets go.
    fn has_window(&self) -> bool {
        self.config.window.is_some()
    }

    /// A sequence has a block in its window.
    pub(super) fn view(&mut self, id: BlockId) {
        self.blocks[id].viewers += 1;
        self.rehide(id);
    }

    /// It no longer has. Steps in flight may still read what it saw.
    pub(super) fn unview(&mut self, id: BlockId) {
        let current = self.epochs.current();
        let block = &mut self.blocks[id];
        block.viewers -= 1;
        block.busy_until = block.busy_until.max(current);
    }

    /// Slides the window of a sequence to its next token.
    pub(super) fn slide_window(&mut self, slot: Slot) {
        if !self.has_window() {
            return;
        }
        let row = self.seqs.at(slot);
        let (before, from) = (row.window_from, self.config.first_visible(row.committed));
        self.seqs.at_mut(slot).window_from = from;
        for index in before..from {
            let block = self.seqs.at(slot).blocks[index];
            self.unview(block);
            self.rehide(block);
        }
    }

    /// Hides a block or shows it, after a change of anything that this depends on.
    pub(super) fn rehide(&mut self, id: BlockId) {
        if !self.has_window() {
            return;
        }
        let should = self.should_hide(id);
        match (self.blocks[id].hidden_at, should) {
            (0, true) => {
                self.clock += 1;
                self.blocks[id].hidden_at = self.clock;
                let block = self.hidden_block(id);
                self.hidden.insert(block, self.epochs.done());
                self.index.touch();
                self.requeue(id);
            }
            (1.., false) => self.unhide(id),
            _ => {}
        }
    }

    /// Whether a block is hidden, by what it depends on.
    pub(super) fn should_hide(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        let is_held = block.refs > 0 && block.sealed && block.viewers == 0;
        let has_windowed = !block.is_trimmed && self.config.windowed_frames(block.level) > 0;
        is_held && has_windowed && !block.is_shrinking
    }

    /// Takes a block off the hidden ones, if it is one.
    pub(super) fn unhide(&mut self, id: BlockId) {
        if self.blocks[id].hidden_at > 0 {
            let block = self.hidden_block(id);
            self.hidden.remove(block, self.epochs.done());
            self.blocks[id].hidden_at = 0;
            self.index.touch();
            self.requeue(id);
        }
    }

    fn hidden_block(&self, id: BlockId) -> HiddenBlock {
        let block = &self.blocks[id];
        HiddenBlock {
            at: block.hidden_at,
            block: id,
            level: block.level,
            windowed: self.config.windowed_frames(block.level),
            until: block.busy_until,
        }
    }

    /// Takes the windowed frames of a hidden block.
    pub(super) fn trim(&mut self, id: BlockId) {
        self.unhide(id);
        let (level, until) = (self.blocks[id].level, self.blocks[id].busy_until);
        let config = &self.config;
        let given = self.blocks.trim(id, |at| config.is_windowed(level, at));
        self.frames.give(&given, until, self.epochs.done());
        self.index.touch();
        self.requeue(id);
    }

    /// What a block takes at each level once it is trimmed, if it is or would be.
    pub(super) fn levels_of(&self, id: BlockId) -> &LevelTable {
        let block = &self.blocks[id];
        match &self.config.window {
            Some(window) if block.is_trimmed || block.hidden_at > 0 => &window.kept,
            _ => &self.config.levels,
        }
    }

    /// Frames of a block without hidden ones.
    pub(super) fn held_frames(&self, id: BlockId) -> u32 {
        let block = &self.blocks[id];
        let hidden = match block.hidden_at {
            0 => 0,
            _ => self.config.windowed_frames(block.level),
        };
        u32::from(block.frames) - hidden
    }
}
