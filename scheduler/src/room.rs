//! Room for arrivals. The queue's bound is for those who will wait: who finds a place in the next
//! plan does not count.

use ebb_block_manager::pressure::BlockedBy;

use crate::scheduler::Scheduler;

/// How much may still arrive before a request is refused with
/// [`QueueFull`](crate::RejectReason::QueueFull).
///
/// [`max_waiting`](crate::Config::max_waiting) bounds the requests that wait beyond the free places
/// of the batch, so that an idle engine takes a burst of `max_running + max_waiting` at once.
/// Places are not free to arrivals while the first in the queue wait for memory: nobody overtakes
/// it. Whether there will be memory for everybody who gets a place by this count is not asked,
/// since prompts may be in the prefix cache. However they come, requests of one choice that run or
/// wait are at most `max_running + max_waiting` together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Requests, each as one, that may join a queue in which every entry counts.
    requests: usize,
    /// Choices that free places, and then `max_waiting` more, have room for.
    choices: usize,
}

impl Room {
    /// Takes a request of `n` choices in, if there is room for it.
    pub fn take(&mut self, n: u32) -> bool {
        let has_room = self.requests > 0 || self.choices > 0;
        if has_room {
            *self = self.without(1, n as usize);
        }
        has_room
    }

    /// What is left beside so many requests and their choices.
    pub fn without(self, requests: usize, choices: usize) -> Self {
        Self {
            requests: self.requests.saturating_sub(requests),
            choices: self.choices.saturating_sub(choices),
        }
    }
}

impl Scheduler {
    /// How much may arrive now.
    pub fn room_for_arrivals(&self) -> Room {
        let config = &self.config;
        Room {
            requests: config.max_waiting.saturating_sub(self.waiting.len()),
            choices: (self.open_places() + config.max_waiting).saturating_sub(self.waiting_choices),
        }
    }

    /// Places in the batch that admission could fill, as far as is known.
    fn open_places(&self) -> usize {
        let first = self.waiting.first_key_value().map(|(_, key)| *key);
        match self.blocked_head {
            Some((seq, _)) if first == Some(seq) => 0,
            _ => self.config.max_running - self.running_choices,
        }
    }

    /// Nobody is admitted because what runs is short of memory itself.
    pub(crate) fn note_shortage(&mut self) {
        if self.policy.shortage_blocks_queue() {
            let first = self.waiting.first_key_value();
            self.blocked_head = first.map(|(_, key)| (*key, BlockedBy::Frames));
        }
    }
}
