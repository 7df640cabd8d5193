//! How many requests may still arrive.

use ebb_block_manager::pressure::BlockedBy;

use crate::scheduler::Scheduler;

/// How many requests may still arrive before one is rejected with
/// [`QueueFull`](crate::RejectReason::QueueFull).
///
/// Requests with a free batch slot do not count against
/// [`max_waiting`](crate::Config::max_waiting), so an idle engine takes a burst of `max_running +
/// max_waiting`. No slot is free while the head of the queue waits for memory, since it is never
/// overtaken. Whether there is memory for all who have a slot is not known, since prompts may be in
/// the prefix cache. Requests of one choice that run or wait are at most `max_running +
/// max_waiting` together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueCapacity {
    /// Requests that may join the queue if every entry counts.
    requests: usize,
    /// Choices that free batch slots, and then `max_waiting` more, have room for.
    choices: usize,
}

impl QueueCapacity {
    /// Takes a request of `n` choices, if there is room for it.
    pub fn take(&mut self, n: u32) -> bool {
        let has_room = self.requests > 0 || self.choices > 0;
        if has_room {
            *self = self.without(1, n as usize);
        }
        has_room
    }

    /// What is left after so many requests and their choices.
    pub fn without(self, requests: usize, choices: usize) -> Self {
        Self {
            requests: self.requests.saturating_sub(requests),
            choices: self.choices.saturating_sub(choices),
        }
    }
}

impl Scheduler {
    /// How many requests may arrive now.
    pub fn queue_capacity(&self) -> QueueCapacity {
        let config = &self.config;
        QueueCapacity {
            requests: config.max_waiting.saturating_sub(self.waiting.len()),
            choices: (self.free_slots() + config.max_waiting).saturating_sub(self.waiting_choices),
        }
    }

    /// Batch slots that admission could fill, as far as is known.
    fn free_slots(&self) -> usize {
        let first = self.waiting.first_key_value().map(|(_, key)| *key);
        match self.blocked_head {
            Some((seq, _)) if first == Some(seq) => 0,
            _ => self.config.max_running - self.running_choices,
        }
    }

    /// No sequence is admitted, because a running one lacks memory.
    pub(crate) fn note_shortage(&mut self) {
        if self.policy.shortage_blocks_queue() {
            let first = self.waiting.first_key_value();
            self.blocked_head = first.map(|(_, key)| (*key, BlockedBy::Frames));
        }
    }
}
