//! States of recurrent layers: fingerprints of all tokens that they stand for.

use super::{Device, Expected, Submitted};
use crate::sim::model::Context;

impl Device {
    /// Copies states.
    pub(super) fn copy_states(&mut self, step: &Submitted) -> Result<(), String> {
        for &(src, dst) in &step.plan.state_copies {
            let slots = self.states.len();
            if src as usize >= slots || dst as usize >= slots {
                return Err(format!("state {src} to {dst} of {slots}"));
            }
            self.states[dst as usize] = self.states[src as usize];
        }
        Ok(())
    }

    /// Moves a slice's state on, which must stand for all tokens before it. `read`: the lowest bits
    /// of what its rows read. Returns the lowest that they or the state are computed from.
    pub(super) fn move_state(
        &mut self,
        step: &Submitted,
        index: usize,
        expected: Expected<'_>,
        read: u8,
    ) -> Result<u8, String> {
        let slice = &step.plan.slices[index];
        let Some(state) = self.states.get_mut(slice.slot.0 as usize) else {
            return Ok(read);
        };
        let after = |tokens: usize| match tokens.checked_sub(1) {
            None => Some(Context::default()),
            Some(last) => expected.at(last).map(|(_, context)| context),
        };
        let position = slice.position as usize;
        let (found, lowest) = match (position, *state) {
            (0, _) => (Some(Context::default()), 16),
            (_, Some((context, lowest))) => (Some(context), lowest),
            (_, None) => (None, 16),
        };
        if found.is_none() || found != after(position) {
            let (request, choice, step) = (slice.request, slice.choice, step.plan.step);
            return Err(format!(
                "{step} {request} choice {choice}: the state does not stand for {position} tokens"
            ));
        }
        let lowest = lowest.min(read);
        *state = after(position + slice.tokens.len()).map(|context| (context, lowest));
        Ok(lowest)
    }

    /// A slice's state is not known any more.
    pub(super) fn lose_state(&mut self, step: &Submitted, index: usize) {
        let slot = step.plan.slices[index].slot.0 as usize;
        if let Some(state) = self.states.get_mut(slot) {
            *state = None;
        }
    }

    /// Those that a failed step was to copy are not known either.
    pub(super) fn lose_copies(&mut self, step: &Submitted) {
        for &(_, dst) in &step.plan.state_copies {
            if let Some(state) = self.states.get_mut(dst as usize) {
                *state = None;
            }
        }
    }
}
