//! The prefix cache's index: a tree of sealed blocks, found by content.
//!
//! An *entry* stands for a chain of blocks from the start of a prompt. It names the *canonical*
//! block, which later prompts share. A sequence that computed the same tokens at the same time
//! keeps its own block as a *duplicate*. When the last holder of the canonical block ends, a
//! duplicate replaces it. So an entry lives as long as any sequence holds one of its blocks, and no
//! block is cached twice.
//!
//! Eviction relies on this: a sequence that holds a block of an entry also holds a block of each
//! ancestor. So no live block is below a cached one, and a cached parent was released after its
//! cached children.

mod cursor;
mod hash;
#[cfg(test)]
mod tests;

use crate::{
    BlockId,
    block::{BlockTokens, Blocks},
    list::List,
    states::KeptState,
};

pub use cursor::PrefixCursor;
pub(crate) use cursor::Prefixes;
pub(crate) use hash::ChainHash;

/// Buckets allocated at first; an index with more entries doubles them.
const BUCKETS_START_MAX: u32 = 1 << 20;

/// Index of an entry, reused after it is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryId(u32);

impl EntryId {
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// One published chain of blocks, by its last block.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The chain without its last block; none for a first block.
    pub(crate) parent: EntryId,
    /// Blocks before this one.
    pub(crate) depth: u32,
    /// The canonical block.
    pub(crate) block: BlockId,
    /// Blocks with the same tokens after the same prefix, held by sequences that computed them.
    pub(crate) duplicates: List,
    /// The state behind it, if it is kept.
    pub(crate) state: Option<KeptState>,
    hash: u64,
    /// Next entry in the same bucket.
    next_in_bucket: EntryId,
    first_child: EntryId,
    prev_sibling: EntryId,
    next_sibling: EntryId,
    /// Rises whenever this index is given to another chain.
    generation: u32,
}

/// All entries.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    entries: Vec<Entry>,
    unused: Vec<EntryId>,
    /// First entry of each bucket; a power of two of them, at least as many as entries.
    buckets: Vec<EntryId>,
    /// Hash of the empty chain.
    root_hash: u64,
    /// Rises whenever a lookup might find something else.
    version: u64,
    /// Tests drop hash bits to make collisions common.
    hash_mask: u64,
}

impl PrefixIndex {
    /// An empty index for up to `entries` entries; `key` is hashed before every chain.
    pub(crate) fn new(entries: u32, key: u64) -> Self {
        let buckets = entries.clamp(1, BUCKETS_START_MAX).next_power_of_two();
        Self {
            entries: Vec::new(),
            unused: Vec::new(),
            buckets: vec![EntryId::NONE; buckets as usize],
            root_hash: key,
            version: 1,
            hash_mask: u64::MAX,
        }
    }

    /// Keeps only these bits of every hash.
    #[cfg(test)]
    pub(crate) fn mask_hashes(&mut self, mask: u64) {
        assert!(self.entries.is_empty());
        self.hash_mask = mask;
    }

    /// Entries alive.
    pub(crate) fn len(&self) -> u32 {
        (self.entries.len() - self.unused.len()) as u32
    }

    pub(crate) fn get(&self, id: EntryId) -> &Entry {
        &self.entries[id.index()]
    }

    pub(crate) fn get_mut(&mut self, id: EntryId) -> &mut Entry {
        &mut self.entries[id.index()]
    }

    /// Makes cursors look again.
    pub(crate) fn touch(&mut self) {
        self.version += 1;
    }

    /// Hash of the chain `parent` followed by `tokens`.
    pub(crate) fn hash(&self, parent: EntryId, tokens: &BlockTokens) -> u64 {
        ChainHash::whole(self.hash_of(parent), tokens) & self.hash_mask
    }

    /// The beginning of the hash of what follows `parent`.
    pub(crate) fn start_hash(&self, parent: EntryId) -> ChainHash {
        ChainHash::after(self.hash_of(parent))
    }

    /// Ends what [`start_hash`](Self::start_hash) began, after a whole block.
    pub(crate) fn end_hash(&self, hash: &ChainHash) -> u64 {
        hash.finish() & self.hash_mask
    }

    fn hash_of(&self, chain: EntryId) -> u64 {
        chain
            .some()
            .map_or(self.root_hash, |chain| self.get(chain).hash)
    }

    /// The entry of the chain `parent` followed by `tokens`, whose hash is `hash`.
    pub(crate) fn find(
        &self,
        blocks: &Blocks,
        parent: EntryId,
        hash: u64,
        tokens: &BlockTokens,
    ) -> Option<EntryId> {
        self.bucket(hash).find(|&id| {
            let entry = self.get(id);
            entry.hash == hash && entry.parent == parent && blocks.tokens(entry.block) == tokens
        })
    }

    /// Entries whose hash falls into the same bucket.
    fn bucket(&self, hash: u64) -> impl Iterator<Item = EntryId> {
        let first = self.buckets[self.bucket_of(hash)].some();
        std::iter::successors(first, |&id| self.get(id).next_in_bucket.some())
    }

    fn bucket_of(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Publishes `block` as the chain `parent` followed by its tokens, not published before.
    pub(crate) fn insert(&mut self, parent: EntryId, hash: u64, block: BlockId) -> EntryId {
        if self.len() as usize == self.buckets.len() {
            self.double_buckets();
        }
        let next = EntryId(self.entries.len() as u32);
        let id = self.unused.pop().unwrap_or(next);
        let depth = parent.some().map_or(0, |parent| self.get(parent).depth + 1);
        let next_in_bucket = self.link(id, hash);
        let next_sibling = match parent.some() {
            Some(parent) => std::mem::replace(&mut self.get_mut(parent).first_child, id),
            None => EntryId::NONE,
        };
        if let Some(next) = next_sibling.some() {
            self.get_mut(next).prev_sibling = id;
        }
        let entry = Entry {
            parent,
            depth,
            block,
            duplicates: List::EMPTY,
            state: None,
            hash,
            next_in_bucket,
            first_child: EntryId::NONE,
            prev_sibling: EntryId::NONE,
            next_sibling,
            generation: self.entries.get(id.index()).map_or(0, |old| old.generation),
        };
        match self.entries.get_mut(id.index()) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        self.touch();
        id
    }

    /// Notes which state is kept behind an entry.
    pub(crate) fn set_state(&mut self, id: EntryId, state: Option<KeptState>) {
        self.get_mut(id).state = state;
        self.touch();
    }

    /// Makes another block with the same content the canonical one.
    pub(crate) fn set_block(&mut self, id: EntryId, block: BlockId) {
        self.get_mut(id).block = block;
        self.touch();
    }

    /// Forgets an entry without children and duplicates.
    pub(crate) fn remove(&mut self, id: EntryId) {
        let entry = self.get_mut(id);
        debug_assert!(entry.first_child == EntryId::NONE && entry.duplicates.len() == 0);
        entry.generation = entry.generation.wrapping_add(1);
        let Entry {
            parent,
            hash,
            next_in_bucket,
            prev_sibling,
            next_sibling,
            ..
        } = *entry;
        entry.block = BlockId::NONE;
        match prev_sibling.some() {
            Some(prev) => self.get_mut(prev).next_sibling = next_sibling,
            None => {
                if let Some(parent) = parent.some() {
                    self.get_mut(parent).first_child = next_sibling;
                }
            }
        }
        if let Some(next) = next_sibling.some() {
            self.get_mut(next).prev_sibling = prev_sibling;
        }
        self.unlink(id, hash, next_in_bucket);
        self.unused.push(id);
        self.touch();
    }

    /// Puts an entry in front of its bucket and returns the one that was there.
    fn link(&mut self, id: EntryId, hash: u64) -> EntryId {
        let bucket = self.bucket_of(hash);
        std::mem::replace(&mut self.buckets[bucket], id)
    }

    fn unlink(&mut self, id: EntryId, hash: u64, next: EntryId) {
        let before = self
            .bucket(hash)
            .find(|&other| self.get(other).next_in_bucket == id);
        match before {
            Some(before) => self.get_mut(before).next_in_bucket = next,
            None => {
                let bucket = self.bucket_of(hash);
                self.buckets[bucket] = next;
            }
        }
    }

    fn double_buckets(&mut self) {
        let buckets = self.buckets.len() * 2;
        self.buckets.clear();
        self.buckets.resize(buckets, EntryId::NONE);
        for id in (0..self.entries.len() as u32).map(EntryId) {
            if self.get(id).block != BlockId::NONE {
                let next = self.link(id, self.get(id).hash);
                self.get_mut(id).next_in_bucket = next;
            }
        }
    }

    /// An entry at or below `id` without children.
    pub(crate) fn leaf_below(&self, id: EntryId) -> EntryId {
        let mut leaf = id;
        while let Some(child) = self.get(leaf).first_child.some() {
            leaf = child;
        }
        leaf
    }

    /// Entries alive, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        let alive = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, e)| e.block != BlockId::NONE);
        alive.map(|(i, entry)| (EntryId(i as u32), entry))
    }

    /// The children of an entry.
    pub(crate) fn children(&self, id: EntryId) -> impl Iterator<Item = EntryId> {
        let first = self.get(id).first_child.some();
        std::iter::successors(first, |&child| self.get(child).next_sibling.some())
    }
}
