//! Where sequences have states of recurrent layers: which of them are kept for prefixes.
//!
//! A state stands for all tokens before, and cannot go back. So a prompt that begins like one
//! before it can begin only where a state was kept. Keeping one costs as much memory as many
//! tokens, so states are kept where prompts are likely to go on: where this one turned out to
//! leave what the prefix cache has, at the end of its last whole block, and at the last whole block
//! of the answer so far. Chunks of prompts end there.

use ebb_block_manager::{BLOCK_TOKENS, KeptState};

use crate::scheduler::Scheduler;
use crate::slab::Key;

/// What is to be kept of a sequence's states, and what has been.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StateMarks {
    /// The position that it began at; `None`: no states are kept of it.
    begun: Option<u32>,
    /// Positions in the prompt behind which a state is to be kept, rising; 0: none.
    at: [u32; 2],
    /// A slot that was taken, and the position that its state stands for: the tokens before are
    /// not in the cache for certain yet.
    taken: Option<(u32, u32)>,
    /// The state kept last behind the answer so far.
    answer: Option<KeptState>,
}

impl StateMarks {
    /// Of a sequence that begins with `cached` tokens of its `known` ones, of which the cache has
    /// the blocks of `alike`. At least one token is computed.
    fn new(cached: u32, alike: u32, known: u32) -> Self {
        let block = BLOCK_TOKENS as u32;
        let last = known.saturating_sub(1) / block * block;
        let above = |mark: u32| if mark > cached { mark } else { 0 };
        Self {
            begun: Some(cached),
            at: [above(alike.min(last)), above(last)],
            ..Self::default()
        }
    }

    /// Whether it has a slot whose state is not kept yet.
    pub(crate) fn has_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// How many of `len` tokens from `position` on are computed at once: up to the next mark.
    pub(crate) fn cut(&self, position: u32, len: u32) -> u32 {
        let next = self.at.iter().find(|mark| **mark > position);
        next.map_or(len, |mark| len.min(mark - position))
    }

    /// Whether the state behind `position` tokens is to be kept: of an answer at every whole block.
    fn is_wanted(&self, position: u32, prompt_len: u32) -> bool {
        let is_new = self.begun.is_some_and(|begun| position > begun);
        let is_whole = position.is_multiple_of(BLOCK_TOKENS as u32);
        is_new && is_whole && (position > prompt_len || self.at.contains(&position))
    }
}

impl Scheduler {
    /// Whether sequences have states.
    pub(crate) fn has_states(&self) -> bool {
        self.blocks.config().states.is_some()
    }

    /// A sequence was admitted: it begins with a kept state, or anew.
    pub(crate) fn begin_states(&mut self, key: Key, alike: usize, state: Option<u32>) {
        let Some(resident) = self.seqs[key].resident.filter(|_| self.has_states()) else {
            return;
        };
        if let Some(state) = state {
            self.state_copies.push((state, resident.slot.0));
        }
        let seq = &mut self.seqs[key];
        let has_slots = self.blocks.config().states.is_some_and(|s| s.count > 0);
        seq.states = match has_slots && !seq.options.is_private {
            true => StateMarks::new(seq.computed, alike as u32, seq.known()),
            false => StateMarks::default(),
        };
    }

    /// The next step computes tokens of a sequence: before that its state is kept, if it is to be.
    pub(crate) fn take_state(&mut self, key: Key) {
        let seq = &mut self.seqs[key];
        let position = seq.computed;
        let Some(resident) = seq.resident else {
            return;
        };
        // One at a time: another is taken before its tokens are in the cache only where more than
        // two steps are in flight.
        let is_wanted = seq.states.is_wanted(position, seq.prompt_len);
        if !is_wanted || seq.states.has_taken() {
            return;
        }
        // An answer has one state, so that answers do not push out those of prompts.
        let before = seq.states.answer.take();
        if let Some(before) = before {
            self.blocks.forget_state(before);
        }
        let Some(slot) = self.blocks.take_state() else {
            return;
        };
        self.state_copies.push((resident.slot.0, slot));
        self.seqs[key].states.taken = Some((position, slot));
        self.keep_state(key);
    }

    /// Keeps a state that was taken, once the tokens before are in the cache.
    pub(crate) fn keep_state(&mut self, key: Key) {
        let seq = &mut self.seqs[key];
        let (Some(resident), Some((position, slot))) = (seq.resident, seq.states.taken) else {
            return;
        };
        if seq.committed != position {
            return;
        }
        seq.states.taken = None;
        let is_answer = position > seq.prompt_len;
        let kept = self.blocks.keep_state(resident.id, slot);
        self.seqs[key].states.answer = kept.filter(|_| is_answer);
    }

    /// A sequence gives up its memory, or what is computed and not committed.
    pub(crate) fn drop_taken_state(&mut self, key: Key) {
        if let Some((_, slot)) = self.seqs[key].states.taken.take() {
            self.blocks.give_state(slot);
        }
    }

    /// A step failed: what states stand for is not known any more. All sequences begin anew.
    pub(crate) fn lose_states(&mut self) {
        self.state_copies.clear();
        while let Some(&(_, key)) = self.running.last() {
            self.seqs[key].undo_uncommitted();
            self.preempt(key);
        }
        // Nor is what those sample that wait, and have steps in flight.
        let waiting: Vec<_> = self.waiting.values().copied().collect();
        for key in waiting {
            if self.seqs[key].in_flight > 0 {
                self.seqs[key].undo_uncommitted();
            }
        }
        self.blocks.forget_states();
    }
}
