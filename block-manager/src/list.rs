//! Linked lists through the blocks themselves, so that joining a list allocates nothing and leaving
//! it needs no search. A block is in at most one list: the cached blocks, least recently used
//! first, or the duplicates of a prefix entry.

use crate::{BlockId, block::Blocks};

/// A block's neighbours in the list it is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    prev: BlockId,
    next: BlockId,
}

impl Links {
    pub(crate) const NONE: Self = Self {
        prev: BlockId::NONE,
        next: BlockId::NONE,
    };
}

/// A list of blocks, first in first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    first: BlockId,
    last: BlockId,
    len: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        first: BlockId::NONE,
        last: BlockId::NONE,
        len: 0,
    };

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn first(&self) -> Option<BlockId> {
        self.first.some()
    }

    /// The block after `id`, which is in this list.
    pub(crate) fn after(blocks: &Blocks, id: BlockId) -> Option<BlockId> {
        blocks[id].links.next.some()
    }

    pub(crate) fn push_back(&mut self, blocks: &mut Blocks, id: BlockId) {
        blocks[id].links = Links {
            prev: self.last,
            next: BlockId::NONE,
        };
        match self.last.some() {
            Some(last) => blocks[last].links.next = id,
            None => self.first = id,
        }
        self.last = id;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, blocks: &mut Blocks, id: BlockId) {
        let Links { prev, next } = std::mem::replace(&mut blocks[id].links, Links::NONE);
        match prev.some() {
            Some(prev) => blocks[prev].links.next = next,
            None => self.first = next,
        }
        match next.some() {
            Some(next) => blocks[next].links.prev = prev,
            None => self.last = prev,
        }
        self.len -= 1;
    }

    pub(crate) fn iter<'a>(&self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + use<'a> {
        std::iter::successors(self.first(), |&id| Self::after(blocks, id))
    }
}
