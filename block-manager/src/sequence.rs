//! Sequences: which blocks hold their tokens, and which row of the device's tables they have.

use rustc_hash::FxHashMap;

use crate::{BLOCK_TOKENS, BlockId, SeqId, Slot, precision::MinBits, prefix::ChainHash};

/// Blocks allocated at first for each row: 128 Ki tokens.
const ROW_RESERVED_MAX: u32 = 1024;

/// One sequence. `committed <= allocated`, and `blocks` cover exactly `allocated` tokens.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) blocks: Vec<BlockId>,
    /// Tokens that are in the KV cache.
    pub(crate) committed: usize,
    /// Tokens that have memory, committed or not. A submitted step may be writing them.
    pub(crate) allocated: usize,
    /// Hash of its full blocks and of the full sub-blocks after them.
    pub(crate) hash: ChainHash,
    /// Its full blocks from this one on are pinned.
    pub(crate) recent_from: usize,
    /// Its blocks from this one on are within the window of its next token.
    pub(crate) window_from: usize,
    pub(crate) options: SeqOptions,
    pub(crate) read: ReadBits,
}

/// What a sequence asks of the pool as long as it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeqOptions {
    /// The lowest nominal bits of anything it is computed from. Its own blocks shrink no further,
    /// and it gets no cached block that is lower or was computed from anything lower.
    pub min_bits: MinBits,
    /// Blocks of higher numbers shrink first. A shared block has the lowest number of its holders.
    pub priority: i32,
    /// Whether it shares no blocks through the prefix cache, so that no other sequence keeps its
    /// blocks from shrinking.
    pub is_private: bool,
}

impl Default for SeqOptions {
    fn default() -> Self {
        Self {
            min_bits: MinBits::ANY,
            priority: 0,
            is_private: false,
        }
    }
}

/// Bits at which a sequence has read its context so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadBits {
    /// Lowest nominal bits read, including what its cached prefix was computed from.
    pub(crate) lowest: u8,
    /// Tokens computed, and the sum over them of the mean bits of what they read, in hundredths.
    pub(crate) tokens: u64,
    pub(crate) centibits: u64,
    /// Lowest and mean bits that a token would read now, and the state of the pool they are for.
    pub(crate) now: (u8, u64),
    pub(crate) seen: (u64, usize),
}

impl Default for ReadBits {
    fn default() -> Self {
        Self {
            lowest: 16,
            tokens: 0,
            centibits: 0,
            now: (16, 1600),
            seen: (0, 0),
        }
    }
}

impl Sequence {
    /// Blocks that are full of committed tokens.
    pub(crate) fn full_blocks(&self) -> usize {
        self.committed / BLOCK_TOKENS
    }

    /// Its full blocks that are pinned.
    pub(crate) fn recent_blocks(&self) -> &[BlockId] {
        let full = &self.blocks[..self.full_blocks()];
        full.get(self.recent_from..).unwrap_or_default()
    }

    /// The block that holds the committed tokens after the last full block, if there are any.
    pub(crate) fn partial_block(&self) -> Option<BlockId> {
        let is_partial = !self.committed.is_multiple_of(BLOCK_TOKENS);
        is_partial.then(|| self.blocks[self.full_blocks()])
    }
}

/// All sequences, by slot and by id.
#[derive(Debug)]
pub(crate) struct Sequences {
    rows: Vec<Sequence>,
    unused: Vec<Slot>,
    by_id: FxHashMap<SeqId, Slot>,
    row_capacity: usize,
}

impl Sequences {
    pub(crate) fn new(max_blocks_per_seq: u32) -> Self {
        Self {
            rows: Vec::new(),
            unused: Vec::new(),
            by_id: FxHashMap::default(),
            row_capacity: max_blocks_per_seq.min(ROW_RESERVED_MAX) as usize,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.by_id.len() as u32
    }

    /// Whether `id` is alive.
    pub(crate) fn contains(&self, id: SeqId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Row of a sequence. Panics if there is none.
    pub(crate) fn slot(&self, id: SeqId) -> Slot {
        match self.by_id.get(&id) {
            Some(&slot) => slot,
            None => panic!("{id} is unknown here: it was never created, or released before"),
        }
    }

    pub(crate) fn get(&self, id: SeqId) -> &Sequence {
        self.at(self.slot(id))
    }

    pub(crate) fn at(&self, slot: Slot) -> &Sequence {
        &self.rows[slot.0 as usize]
    }

    pub(crate) fn at_mut(&mut self, slot: Slot) -> &mut Sequence {
        &mut self.rows[slot.0 as usize]
    }

    /// Gives a new, empty sequence a row.
    pub(crate) fn insert(&mut self, id: SeqId, hash: ChainHash, options: SeqOptions) -> Slot {
        assert!(
            !self.contains(id),
            "{id} is alive already: release it before it starts again"
        );
        let slot = self.unused.pop().unwrap_or_else(|| {
            let blocks = Vec::with_capacity(self.row_capacity);
            self.rows.push(Sequence {
                id,
                blocks,
                committed: 0,
                allocated: 0,
                hash,
                recent_from: usize::MAX,
                window_from: 0,
                options,
                read: ReadBits::default(),
            });
            Slot(self.rows.len() as u32 - 1)
        });
        self.by_id.insert(id, slot);
        let row = self.at_mut(slot);
        debug_assert!(row.blocks.is_empty());
        (row.id, row.committed, row.allocated, row.hash) = (id, 0, 0, hash);
        (row.options, row.read) = (options, ReadBits::default());
        (row.recent_from, row.window_from) = (usize::MAX, 0);
        slot
    }

    /// Frees a row whose blocks have been given back.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let row = self.at_mut(slot);
        row.blocks.clear();
        let id = row.id;
        self.by_id.remove(&id);
        self.unused.push(slot);
    }

    /// All sequences alive.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.rows.iter().enumerate().filter_map(|(row, sequence)| {
            let slot = self.by_id.get(&sequence.id)?;
            (slot.0 as usize == row).then_some(sequence)
        })
    }
}
