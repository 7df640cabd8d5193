//! An active request: one prompt, one or more choices.

use std::sync::Arc;

use crate::slab::Key;
use crate::urgency::Urgency;
use crate::{Millis, RequestId};

/// The state of a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Its prompt is computed by the leader, for all choices.
    Sharing,
    /// It has a sequence of its own.
    Own(Key),
    /// It has finished; its notice was given.
    Ended,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: RequestId,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) deadline: Option<Millis>,
    pub(crate) urgency: Urgency,
    /// With prompt log-probabilities: prompt tokens whose logits were delivered.
    pub(crate) logits_delivered: u32,
    /// The sequence that computes the prompt while the choices share it.
    pub(crate) leader: Option<Key>,
    pub(crate) choices: Vec<Choice>,
    /// Choices that have not ended.
    pub(crate) active: u32,
    pub(crate) admitted: bool,
}

impl Group {
    /// Choices that have not ended, in order.
    pub(crate) fn active_choices(&self) -> impl Iterator<Item = u32> + '_ {
        let active = self
            .choices
            .iter()
            .enumerate()
            .filter(|(_, c)| **c != Choice::Ended);
        active.map(|(i, _)| i as u32)
    }
}
