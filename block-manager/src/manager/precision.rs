//! The precision of blocks: how far they may shrink, and at which bits sequences read them.

use super::BlockManager;
use crate::{
    BlockId, LevelUse, SeqBits, SeqId,
    precision::{LevelTable, MinBits},
};

/// A block that only the prefix cache keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedBlock {
    /// The block.
    pub block: BlockId,
    /// Its precision level.
    pub level: u16,
    /// Frames it owns.
    pub frames: u32,
    /// Mean stored bits of its values, in hundredths.
    pub centibits: u64,
    /// Blocks before it in its prompt. 0: it is the attention sink of all that will share it.
    pub depth: u32,
}

/// A block of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// The block.
    pub block: BlockId,
    /// Its precision level.
    pub level: u16,
    /// Frames it owns.
    pub frames: u32,
    /// Mean stored bits of its values, in hundredths.
    pub centibits: u64,
    /// Sequences that hold it.
    pub holders: u32,
}

impl BlockManager {
    /// Whether a holder protects the block: it is the first or the last sealed block of a sequence,
    /// or a sequence has not filled it.
    pub fn is_protected(&self, block: BlockId) -> bool {
        let block = &self.blocks[block];
        !block.sealed || block.protections > 0
    }

    /// The lowest nominal bits that the block may shrink to now: the highest that its holders ask
    /// for or that its protection asks for.
    pub fn min_bits(&self, block: BlockId) -> MinBits {
        let block = &self.blocks[block];
        if !block.sealed || block.pins > 0 {
            return MinBits::SIXTEEN;
        }
        let claim = block
            .min_bits_counts
            .iter()
            .position(|&holders| holders > 0);
        let claimed = claim.map_or(MinBits::ANY, |class| MinBits::CLASSES[class]);
        if block.is_first {
            claimed.max(self.config.sink)
        } else if block.protections > 0 {
            claimed.max(self.config.protected)
        } else {
            claimed
        }
    }

    /// Cached blocks from the least to the most recently used.
    pub fn cached_blocks(&self) -> impl Iterator<Item = CachedBlock> + '_ {
        self.cached.iter(&self.blocks).map(|id| {
            let block = &self.blocks[id];
            CachedBlock {
                block: id,
                level: block.level,
                frames: block.frames.into(),
                centibits: self.centibits(id),
                depth: self.index.get(block.entry).depth,
            }
        })
    }

    /// The sealed blocks of a sequence that no holder protects, oldest tokens first.
    pub fn unprotected_blocks(&self, seq: SeqId) -> impl Iterator<Item = LiveBlock> + '_ {
        let row = self.seqs.get(seq);
        let sealed = row.blocks[..row.full_blocks()].iter();
        let unprotected = sealed.filter(|&&id| !self.is_protected(id));
        unprotected.map(|&id| self.live_block(id))
    }

    /// All blocks of a sequence, oldest tokens first; the last one may be open.
    pub fn blocks_of(&self, seq: SeqId) -> impl ExactSizeIterator<Item = LiveBlock> + '_ {
        let blocks = self.seqs.get(seq).blocks.iter();
        blocks.map(|&id| self.live_block(id))
    }

    fn live_block(&self, id: BlockId) -> LiveBlock {
        let block = &self.blocks[id];
        LiveBlock {
            block: id,
            level: block.level,
            frames: block.frames.into(),
            centibits: self.centibits(id),
            holders: block.refs,
        }
    }

    fn centibits(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let levels = match &self.config.window {
            Some(window) if block.is_trimmed => &window.kept,
            _ => &self.config.levels,
        };
        levels.centibits(block.level)
    }

    /// Blocks at each precision level that has some.
    pub fn level_use(&self) -> impl Iterator<Item = LevelUse> + '_ {
        let cached = self.cached.by_level().iter();
        let counts = self.blocks.by_level().iter().zip(cached);
        let counts = counts
            .zip(0_u16..)
            .filter(|(([blocks, _], _), _)| *blocks > 0);
        counts.map(|(([blocks, trimmed], [cached, cached_trimmed]), level)| {
            let bytes = |levels: &LevelTable| levels.level(level).size.bytes;
            let whole = bytes(&self.config.levels);
            let window = self.config.window.as_ref();
            let kept = window.map_or(whole, |window| bytes(&window.kept));
            LevelUse {
                level,
                blocks,
                cached,
                trimmed,
                cached_trimmed,
                hidden: self.hidden.by_level()[usize::from(level)],
                bytes: whole * u64::from(blocks - trimmed) + kept * u64::from(trimmed),
            }
        })
    }

    /// Notes that the step being planned computes `tokens` tokens of `seq`, which read its blocks
    /// as they are now. Where blocks can shrink, call it for every sequence of the step before
    /// [`begin_step`](Self::begin_step): published blocks carry the lowest bits that they were
    /// computed from.
    pub fn note_read(&mut self, seq: SeqId, tokens: u32) {
        if !self.config.shrinks() {
            return;
        }
        let slot = self.seqs.slot(seq);
        let row = self.seqs.at(slot);
        let mut read = row.read;
        let seen = (self.level_changes, row.blocks.len());
        if read.seen != seen {
            read.seen = seen;
            let table = &self.config.levels;
            let (mut lowest, mut sum) = (16, 0);
            for &id in &row.blocks {
                let level = self.blocks[id].level;
                lowest = lowest.min(table.level(level).lowest_bits);
                sum += table.centibits(level);
            }
            read.now = (lowest, sum / row.blocks.len().max(1) as u64);
        }
        read.lowest = read.lowest.min(read.now.0);
        read.tokens += u64::from(tokens);
        read.centibits += u64::from(tokens) * read.now.1;
        self.seqs.at_mut(slot).read = read;
    }

    /// Bits at which a sequence's tokens have read their context.
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
