//! What a check of steps has to know of precision levels.

use super::StepInputError as E;
use crate::formats::legal_shrink;
use crate::kv::{KvLayout, Side};

/// The precision levels of a pool's blocks, in frames. Block tables and checks of steps need no
/// more, so that the simulation can check its plans by the rules of the backends.
pub trait BlockLevels {
    /// Levels, the one of 16 bit included.
    fn count(&self) -> usize;

    /// Frames of a full block at a level.
    fn frames(&self, level: u16) -> u32;

    /// Frames of 16 tokens at 16 bit.
    fn frames_per_sub_block(&self) -> usize;

    /// Whether frame `index` of a block at a level has pages of layers with a sliding window alone.
    /// A block that no sequence has in its window may lack these.
    fn is_windowed(&self, level: u16, index: usize) -> bool;

    /// Whether a block may go from one level to the other.
    ///
    /// # Errors
    /// What is wrong with shrink number `shrink`.
    fn check_shrink(&self, shrink: usize, from: u16, to: u16) -> Result<(), E>;
}

impl BlockLevels for KvLayout {
    fn count(&self) -> usize {
        self.levels()
    }

    fn frames(&self, level: u16) -> u32 {
        self.frames(level)
    }

    fn frames_per_sub_block(&self) -> usize {
        self.frame().frames_per_sub_block
    }

    fn is_windowed(&self, level: u16, index: usize) -> bool {
        self.is_windowed(level, index)
    }

    /// Every page moves down its ladder or stays.
    fn check_shrink(&self, shrink: usize, from: u16, to: u16) -> Result<(), E> {
        let (from, to) = (self.formats(from), self.formats(to));
        for (page, (from, to)) in from.iter().zip(to).enumerate() {
            let side = Side::of_page(page);
            if from != to && !legal_shrink(*from, *to, side) {
                return Err(E::ShrinkFormats {
                    shrink,
                    layer: page / 2,
                    side,
                    from: *from,
                    to: *to,
                });
            }
        }
        Ok(())
    }
}
