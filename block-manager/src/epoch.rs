//! Which steps may still touch the arena.
//!
//! Steps are numbered by *epochs* 1, 2, … in the order they begin. What is freed is tagged with
//! the last epoch that may touch it. It may be reused once every step up to that epoch has retired.

use std::collections::VecDeque;

use crate::StepId;

/// Number of a step among all steps begun; 0 is before the first.
pub(crate) type Epoch = u64;

/// The steps in flight.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    begun: Epoch,
    last_step: Option<StepId>,
    in_flight: VecDeque<(StepId, Epoch)>,
}

impl Epochs {
    /// The last step begun: nothing later can touch what is freed now.
    pub(crate) fn current(&self) -> Epoch {
        self.begun
    }

    /// The step being planned, which will touch what its copies and shrinks read and write.
    pub(crate) fn planned(&self) -> Epoch {
        self.begun + 1
    }

    /// Every epoch up to this one has retired.
    pub(crate) fn done(&self) -> Epoch {
        self.in_flight
            .front()
            .map_or(self.begun, |&(_, first)| first - 1)
    }

    pub(crate) fn begin(&mut self, step: StepId) {
        if let Some(last) = self.last_step {
            assert!(
                last < step,
                "{step} begins after {last}: step ids must rise"
            );
        }
        self.begun += 1;
        self.last_step = Some(step);
        self.in_flight.push_back((step, self.begun));
    }

    /// Epoch of a step in flight.
    pub(crate) fn of(&self, step: StepId) -> Epoch {
        let found = self.in_flight.iter().find(|&&(s, _)| s == step);
        found.map_or_else(|| panic!("{step} is not in flight"), |&(_, epoch)| epoch)
    }

    /// Nothing that was tagged for the step being planned is left in it: its epoch counts as begun
    /// and retired, and the step gets the next one.
    pub(crate) fn skip(&mut self) {
        self.begun += 1;
    }

    /// Steps may retire in any order. What waits for a step also waits for those before it.
    pub(crate) fn retire(&mut self, step: StepId) {
        let Some(at) = self.in_flight.iter().position(|&(s, _)| s == step) else {
            panic!("{step} retires but is not in flight: begin it first, retire it once");
        };
        self.in_flight.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_waits_for_those_before_it() {
        let mut epochs = Epochs::default();
        assert_eq!(epochs.done(), 0);
        for step in [10, 20, 30] {
            epochs.begin(StepId(step));
        }
        assert_eq!((epochs.current(), epochs.done()), (3, 0));
        epochs.retire(StepId(20));
        assert_eq!(epochs.done(), 0);
        epochs.retire(StepId(10));
        assert_eq!(epochs.done(), 2);
        epochs.retire(StepId(30));
        assert_eq!((epochs.done(), epochs.planned()), (3, 4));
    }

    #[test]
    fn a_skipped_step_waits_only_for_those_before_it() {
        let mut epochs = Epochs::default();
        epochs.begin(StepId(1));
        let planned = epochs.planned();
        epochs.skip();
        assert!(epochs.done() < planned);
        epochs.retire(StepId(1));
        assert_eq!(epochs.done(), planned);
    }

    #[test]
    #[should_panic(expected = "step ids must rise")]
    fn step_ids_rise() {
        let mut epochs = Epochs::default();
        epochs.begin(StepId(2));
        epochs.begin(StepId(2));
    }

    #[test]
    #[should_panic(expected = "retire it once")]
    fn a_step_retires_once() {
        let mut epochs = Epochs::default();
        epochs.begin(StepId(2));
        epochs.retire(StepId(2));
        epochs.retire(StepId(2));
    }
}
