//! States of recurrent layers that are kept for prefixes.
//!
//! A model with recurrent layers cannot begin behind a prefix whose keys and values alone are
//! there: it needs the state behind its last token, too. A *kept state* belongs to an entry of the
//! prefix cache and lies in a slot of its own behind those of the sequences. Slots are few, since a
//! state is as large as the KV cache of many tokens. When there are none left, the state that was
//! least recently used is given up. The blocks stay: a prompt that begins like them is computed
//! again up to where they end, and its state is kept there.

use std::collections::BTreeMap;

use crate::prefix::{EntryId, PrefixIndex};

/// Slots of kept states: `first .. first + count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateSlots {
    /// The first of them; those before are the sequences'.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

/// A state that has a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptState {
    /// Where it lies.
    pub slot: u32,
    /// The lowest bits of anything that it was computed from.
    pub(crate) bits: u8,
    /// When it was last used, which tells it from others.
    used_at: u64,
}

/// Who has which slot.
#[derive(Debug, Default)]
pub(crate) struct States {
    unused: Vec<u32>,
    /// Those of entries, the least recently used first.
    kept: BTreeMap<u64, (u32, EntryId)>,
    clock: u64,
}

impl States {
    pub(crate) fn new(slots: Option<StateSlots>) -> Self {
        let slots = slots.map_or(0..0, |slots| slots.first..slots.first + slots.count);
        Self {
            unused: slots.rev().collect(),
            ..Self::default()
        }
    }

    /// A slot for a state that is to be kept; that of the least recently used one if none is free.
    pub(crate) fn take(&mut self, index: &mut PrefixIndex) -> Option<u32> {
        self.unused.pop().or_else(|| {
            let (_, (slot, entry)) = self.kept.pop_first()?;
            index.set_state(entry, None);
            Some(slot)
        })
    }

    /// Gives a slot back that no entry has.
    pub(crate) fn give(&mut self, slot: u32) {
        self.unused.push(slot);
    }

    /// Gives an entry the state in `slot`, unless it has one that serves as many requests.
    pub(crate) fn keep(
        &mut self,
        index: &mut PrefixIndex,
        entry: EntryId,
        (slot, bits): (u32, u8),
    ) -> Option<KeptState> {
        match index.get(entry).state {
            Some(state) if state.bits >= bits => {
                self.give(slot);
                self.touch(index, entry);
                return None;
            }
            Some(state) => self.forget(index, state),
            None => {}
        }
        Some(self.put(index, entry, (slot, bits)))
    }

    /// Uses the state of an entry.
    pub(crate) fn touch(&mut self, index: &mut PrefixIndex, entry: EntryId) -> Option<KeptState> {
        let state = index.get(entry).state?;
        self.kept.remove(&state.used_at);
        Some(self.put(index, entry, (state.slot, state.bits)))
    }

    fn put(
        &mut self,
        index: &mut PrefixIndex,
        entry: EntryId,
        (slot, bits): (u32, u8),
    ) -> KeptState {
        self.clock += 1;
        let state = KeptState {
            slot,
            bits,
            used_at: self.clock,
        };
        self.kept.insert(self.clock, (slot, entry));
        index.set_state(entry, Some(state));
        state
    }

    /// Gives a state up that was kept, unless it was given up or used since.
    pub(crate) fn forget(&mut self, index: &mut PrefixIndex, state: KeptState) {
        if let Some((slot, entry)) = self.kept.remove(&state.used_at) {
            index.set_state(entry, None);
            self.give(slot);
        }
    }

    /// An entry is about to be removed.
    pub(crate) fn drop_entry(&mut self, index: &PrefixIndex, entry: EntryId) {
        if let Some(state) = index.get(entry).state {
            self.kept.remove(&state.used_at);
            self.give(state.slot);
        }
    }

    /// Gives all of them up.
    pub(crate) fn forget_all(&mut self, index: &mut PrefixIndex) {
        while let Some((_, (slot, entry))) = self.kept.pop_first() {
            index.set_state(entry, None);
            self.give(slot);
        }
    }

    /// Slots that no entry and nobody who took one has.
    pub(crate) fn unused(&self) -> &[u32] {
        &self.unused
    }

    /// Slots of entries.
    pub(crate) fn kept(&self) -> impl ExactSizeIterator<Item = (u32, EntryId)> + '_ {
        self.kept.values().copied()
    }
}
