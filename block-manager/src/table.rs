//! Block tables as the device reads them.

use crate::{BlockId, Slot, block::Blocks};

/// One change of the device's tables, to be applied in order.
///
/// The device keeps two tables: for each slot the blocks of its sequence, for each block its
/// precision level and its frames. A block shared by many sequences is described once, so growing
/// or shrinking it is one change however many sequences hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableDelta {
    /// Entry `index` of row `slot` is now `block`.
    Row {
        /// Row of the sequence.
        slot: Slot,
        /// Which block of the sequence: tokens `128 * index ..`.
        index: u32,
        /// The block that holds them.
        block: BlockId,
    },
    /// `block` is now at another precision level and has no frames; they follow.
    Block {
        /// The block.
        block: BlockId,
        /// Its precision level.
        level: u16,
    },
    /// Frame `index` of `block` is `frame`.
    Frame {
        /// The block.
        block: BlockId,
        /// Which frame of the block.
        index: u32,
        /// Frame id: bytes `frame * frame_bytes ..` of the arena.
        frame: u32,
    },
}

/// The blocks of one sequence, in the order of its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    pub(crate) blocks: &'a Blocks,
    pub(crate) ids: &'a [BlockId],
}

impl<'a> Table<'a> {
    /// Number of blocks, for committed tokens and those being written.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether no token has memory yet.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Precision level and frames of block `index`. `None` past the end.
    pub fn get(&self, index: usize) -> Option<(u16, &'a [u32])> {
        self.ids
            .get(index)
            .map(|&id| (self.blocks[id].level, self.blocks.frames(id)))
    }

    /// Precision level and frames of every block, in order. A block that is not full may own more
    /// frames than the sequence's tokens need.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u16, &'a [u32])> + use<'a> {
        let blocks = self.blocks;
        self.ids
            .iter()
            .map(move |&id| (blocks[id].level, blocks.frames(id)))
    }

    /// The blocks' ids, in order.
    pub fn ids(&self) -> &'a [BlockId] {
        self.ids
    }
}
