//! At which precision blocks are, how far they may shrink, and what sequences read.

use super::BlockManager;
use crate::{BlockId, PositionUse, SeqBits, SeqId, schedule::Bound};

/// A block that only the prefix cache keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColdBlock {
    /// The block.
    pub block: BlockId,
    /// Its place in the shrink schedule.
    pub position: u16,
    /// Frames it owns.
    pub frames: u32,
    /// Blocks before it in its prompt; 0 is the attention sink of every sequence that will share
    /// it.
    pub depth: u32,
}

/// A sealed block of a sequence that no holder protects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// The block.
    pub block: BlockId,
    /// Its place in the shrink schedule.
    pub position: u16,
    /// Frames it owns.
    pub frames: u32,
    /// Sequences that hold it.
    pub holders: u32,
}

impl BlockManager {
    /// Whether a holder needs the block's width: it is the first or the last sealed block of a
    /// sequence, or not sealed for one of them.
    pub fn is_protected(&self, block: BlockId) -> bool {
        let block = &self.blocks[block];
        !block.sealed || block.guards > 0
    }

    /// The lowest nominal bits that the block may shrink to now: the highest of what its holders
    /// insist on and of what protects it.
    pub fn bound(&self, block: BlockId) -> Bound {
        let block = &self.blocks[block];
        if !block.sealed || block.pins > 0 {
            return Bound::NEVER;
        }
        let claim = block.claims.iter().position(|&holders| holders > 0);
        let claimed = claim.map_or(Bound::FLOOR, |class| Bound::WIDTHS[class]);
        if block.first {
            claimed.max(self.config.sink)
        } else if block.guards > 0 {
            claimed.max(self.config.protected)
        } else {
            claimed
        }
    }

    /// Cached blocks from the least to the most recently used.
    pub fn cold_blocks(&self) -> impl Iterator<Item = ColdBlock> + '_ {
        self.cached.iter(&self.blocks).map(|id| {
            let block = &self.blocks[id];
            ColdBlock {
                block: id,
                position: block.position,
                frames: block.frames.into(),
                depth: self.index.get(block.entry).depth,
            }
        })
    }

    /// The sealed blocks of a sequence that no holder protects, oldest tokens first.
    pub fn unprotected_blocks(&self, seq: SeqId) -> impl Iterator<Item = LiveBlock> + '_ {
        let row = self.seqs.get(seq);
        let sealed = row.blocks[..row.full_blocks()].iter();
        sealed.filter(|&&id| !self.is_protected(id)).map(|&id| {
            let block = &self.blocks[id];
            LiveBlock {
                block: id,
                position: block.position,
                frames: block.frames.into(),
                holders: block.refs,
            }
        })
    }

    /// Blocks at each position that has some.
    pub fn position_use(&self) -> impl Iterator<Item = PositionUse> + '_ {
        let counts = self.blocks.standing().iter().zip(self.cached.standing());
        counts
            .zip(0_u16..)
            .filter(|((blocks, _), _)| **blocks > 0)
            .map(|((&blocks, &cached), position)| {
                let bytes = self.config.positions.standing(position).cost.bytes;
                PositionUse {
                    position,
                    blocks,
                    cached,
                    bytes: bytes * u64::from(blocks),
                }
            })
    }

    /// A step that is being planned computes `tokens` tokens of `seq`, which read its blocks as
    /// they are now. Call it for every sequence of the step before [`begin_step`], if blocks can
    /// shrink: what is published of the sequence carries the lowest bits it was computed from.
    ///
    /// [`begin_step`]: Self::begin_step
    pub fn note_read(&mut self, seq: SeqId, tokens: u32) {
        if !self.config.shrinks() {
            return;
        }
        let slot = self.seqs.slot(seq);
        let row = self.seqs.at(slot);
        let mut read = row.read;
        let seen = (self.moves, row.blocks.len());
        if read.seen != seen {
            read.seen = seen;
            let table = &self.config.positions;
            let (mut lowest, mut sum) = (16, 0);
            for &id in &row.blocks {
                let position = self.blocks[id].position;
                lowest = lowest.min(table.standing(position).min_bits);
                sum += table.centibits(position);
            }
            read.now = (lowest, sum / row.blocks.len().max(1) as u64);
        }
        read.lowest = read.lowest.min(read.now.0);
        read.tokens += u64::from(tokens);
        read.centibits += u64::from(tokens) * read.now.1;
        self.seqs.at_mut(slot).read = read;
    }

    /// Widths at which a sequence's tokens have read their context.
    pub fn bits(&self, seq: SeqId) -> SeqBits {
        let read = self.seqs.get(seq).read;
        let mean = read.centibits.checked_div(read.tokens).unwrap_or(1600);
        SeqBits {
            lowest: read.lowest,
            mean_centibits: mean as u32,
            tokens: read.tokens,
        }
    }
}
