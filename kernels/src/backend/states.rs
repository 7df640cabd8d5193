//! States of recurrent layers: what sequences have beside the KV cache.
//!
//! A model with recurrent layers keeps for each sequence a state of fixed size
//! ([`ModelSpec::state_floats`](crate::model::ModelSpec::state_floats)), in the slot that also
//! names its row of the block table. A step's rows move it on. It cannot go back: rows begin where
//! the state stands, or at position 0, where it begins anew. [`StateCopy`]s copy whole states, for
//! sequences that fork and for prefixes that are kept.

use super::{StepInput, StepInputError as E};

/// Copy of one whole state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateCopy {
    /// Slot read.
    pub src: u32,
    /// Slot written.
    pub dst: u32,
}

/// How far the states have come, as steps were submitted.
#[derive(Debug, Clone, Default)]
pub struct StatePositions {
    /// Tokens that the state in each slot stands for; `None`: not known, since a step failed.
    tokens: Vec<Option<u32>>,
    /// What was there before the step that is being applied, to take it back.
    before: Vec<(u32, Option<u32>)>,
    /// The last step that had rows of each slot, by `steps`.
    had_rows: Vec<u64>,
    steps: u64,
}

/// Most slots: more than any scheduler has sequences.
const SLOTS_MAX: usize = 1 << 21;

impl StatePositions {
    /// Checks a step's copies and rows, and counts them. `slots`: how many states there is room
    /// for; `None` where the model has none.
    ///
    /// # Errors
    /// Then nothing has changed.
    pub fn apply(&mut self, input: &StepInput, slots: Option<usize>) -> Result<(), E> {
        self.before.clear();
        self.steps += 1;
        let applied = match (slots, input.state_copies.first()) {
            (Some(slots), _) => self.try_apply(input, slots.min(SLOTS_MAX)),
            (None, None) => Ok(()),
            (None, Some(copy)) => Err(E::StateSlot {
                copy: 0,
                slot: copy.src,
                slots: 0,
            }),
        };
        if applied.is_err() {
            self.take_back();
        }
        applied
    }

    fn try_apply(&mut self, input: &StepInput, slots: usize) -> Result<(), E> {
        for (copy, StateCopy { src, dst }) in input.state_copies.iter().enumerate() {
            for slot in [*src, *dst] {
                if slot as usize >= slots {
                    return Err(E::StateSlot { copy, slot, slots });
                }
            }
            let tokens = self.get(*src);
            self.set(*dst, tokens);
        }
        for (seq, rows) in input.seqs.iter().enumerate() {
            if rows.slot as usize >= slots {
                return Err(E::Slot {
                    seq,
                    slot: rows.slot,
                    slots,
                });
            }
            let position = rows.position;
            let found = self.get(rows.slot);
            if position != 0 && found != Some(position) {
                return Err(E::State {
                    seq,
                    position,
                    found,
                });
            }
            self.set(rows.slot, Some(position.saturating_add(rows.rows)));
            let had_rows = &mut self.had_rows[rows.slot as usize];
            if std::mem::replace(had_rows, self.steps) == self.steps {
                return Err(E::StateTwice {
                    seq,
                    slot: rows.slot,
                });
            }
        }
        Ok(())
    }

    /// Takes the last step back, which did not run.
    pub fn take_back(&mut self) {
        while let Some((slot, tokens)) = self.before.pop() {
            self.tokens[slot as usize] = tokens;
        }
    }

    /// A step failed while it ran: what its states stand for is not known.
    pub fn lose(&mut self, slots: impl Iterator<Item = u32>) {
        for slot in slots {
            self.set(slot, None);
        }
    }

    /// One past the last slot that was ever written.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether no state was ever written.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    fn get(&self, slot: u32) -> Option<u32> {
        self.tokens.get(slot as usize).copied().unwrap_or(Some(0))
    }

    fn set(&mut self, slot: u32, tokens: Option<u32>) {
        self.before.push((slot, self.get(slot)));
        let slot = slot as usize;
        if slot >= self.tokens.len() {
            self.tokens.resize(slot + 1, Some(0));
            self.had_rows.resize(slot + 1, 0);
        }
        self.tokens[slot] = tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(slot: u32, position: u32, rows: usize) -> StepInput {
        let mut input = StepInput::default();
        input.push_seq(slot, position, &vec![1; rows]);
        input
    }

    #[test]
    fn rows_follow_the_state_or_begin_anew() {
        let mut states = StatePositions::default();
        assert_eq!(states.apply(&rows(1, 0, 5), Some(4)), Ok(()));
        assert_eq!(states.apply(&rows(1, 5, 1), Some(4)), Ok(()));
        let again = |position, found| {
            Err(E::State {
                seq: 0,
                position,
                found,
            })
        };
        assert_eq!(states.apply(&rows(1, 5, 1), Some(4)), again(5, Some(6)));
        assert_eq!(states.apply(&rows(1, 0, 3), Some(4)), Ok(()));
        let mut copied = rows(2, 3, 1);
        copied.state_copies.push(StateCopy { src: 1, dst: 2 });
        assert_eq!(states.apply(&copied, Some(4)), Ok(()));
        assert_eq!(states.apply(&rows(1, 3, 1), Some(4)), Ok(()));
        states.lose([1].into_iter());
        assert_eq!(states.apply(&rows(1, 4, 1), Some(4)), again(4, None));
        assert_eq!(states.apply(&rows(1, 0, 1), Some(4)), Ok(()));
    }

    #[test]
    fn a_slot_has_rows_once_in_a_step() {
        let mut states = StatePositions::default();
        let mut step = rows(1, 0, 128);
        step.push_seq(1, 128, &[1]);
        let refused = Err(E::StateTwice { seq: 1, slot: 1 });
        assert_eq!(states.apply(&step, Some(4)), refused);
        assert_eq!(states.apply(&rows(1, 0, 128), Some(4)), Ok(()));
        assert_eq!(states.apply(&rows(1, 128, 1), Some(4)), Ok(()));
    }

    #[test]
    fn a_model_without_states_has_none_to_copy() {
        let mut states = StatePositions::default();
        assert_eq!(states.apply(&rows(1, 7, 1), None), Ok(()));
        let mut step = StepInput::default();
        step.state_copies.push(StateCopy { src: 3, dst: 1 });
        let refused = E::StateSlot {
            copy: 0,
            slot: 3,
            slots: 0,
        };
        assert_eq!(states.apply(&step, None), Err(refused));
    }

    #[test]
    fn a_step_that_is_refused_changes_nothing() {
        let mut states = StatePositions::default();
        states.apply(&rows(0, 0, 7), Some(2)).unwrap();
        let mut step = rows(0, 7, 1);
        step.push_seq(1, 2, &[1]);
        step.state_copies.push(StateCopy { src: 0, dst: 1 });
        assert!(matches!(
            states.apply(&step, Some(2)),
            Err(E::State {
                seq: 1,
                position: 2,
                found: Some(7)
            })
        ));
        assert_eq!(states.apply(&rows(0, 7, 1), Some(2)), Ok(()));
        assert!(matches!(
            states.apply(&rows(2, 0, 1), Some(2)),
            Err(E::Slot { .. })
        ));
        let mut step = StepInput::default();
        step.state_copies.push(StateCopy { src: 0, dst: 9 });
        let refused = E::StateSlot {
            copy: 0,
            slot: 9,
            slots: 2,
        };
        assert_eq!(states.apply(&step, Some(2)), Err(refused));
    }
}
