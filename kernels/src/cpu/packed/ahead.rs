//! Fetching what will be multiplied a little later.

use super::AHEAD;
use super::layout::Layout;
use crate::cpu::simd::Simd;
use crate::memory::LINE;

/// A place in memory that moves on by a panel while a panel is multiplied, line by line: scales and
/// codes are read at two places, but fetched in the order in which they lie.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    at: *const u8,
    /// Lines of a panel.
    lines: usize,
    /// Blocks of a panel.
    blocks: usize,
    /// Lines that are due, times the blocks of a panel.
    due: usize,
}

impl Ahead {
    /// For a block of a panel.
    #[inline(always)]
    pub(super) fn of(layout: &Layout, panel: *const u8, block: usize) -> Self {
        let (lines, blocks) = (layout.panel_bytes() / LINE, layout.blocks());
        // Codes lie behind the scales.
        let first = (layout.codes() + AHEAD) / LINE + block * lines / blocks;
        Self {
            at: panel.wrapping_add(first * LINE),
            lines,
            blocks,
            due: block * lines % blocks,
        }
    }

    /// Fetches as many lines as a block has.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&mut self, s: S) {
        self.due += self.lines;
        while self.due >= self.blocks {
            s.prefetch(self.at);
            self.at = self.at.wrapping_add(LINE);
            self.due -= self.blocks;
        }
    }
}
