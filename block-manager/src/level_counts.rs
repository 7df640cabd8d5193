//! How many blocks are at each precision level.

use crate::block::Block;

/// Blocks at each precision level: all of them, and trimmed ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LevelCounts(Vec<[u32; 2]>);

impl LevelCounts {
    /// No block at any of `levels` levels.
    pub(crate) fn new(levels: usize) -> Self {
        Self(vec![[0; 2]; levels])
    }

    pub(crate) fn add(&mut self, block: &Block) {
        let [all, trimmed] = &mut self.0[usize::from(block.level)];
        *all += 1;
        *trimmed += u32::from(block.is_trimmed);
    }

    /// Undoes [`add`](Self::add).
    pub(crate) fn remove(&mut self, block: &Block) {
        let [all, trimmed] = &mut self.0[usize::from(block.level)];
        *all -= 1;
        *trimmed -= u32::from(block.is_trimmed);
    }

    /// All blocks and trimmed ones at each level.
    pub(crate) fn iter(&self) -> impl Iterator<Item = [u32; 2]> + '_ {
        self.0.iter().copied()
    }
}
