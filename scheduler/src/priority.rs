//! Preemption for priority: the head of the queue gets the slot of a running sequence that is less
//! urgent by a margin.
//!
//! Levels of priority are compared, not ages: a running sequence that arrived long ago yields, too.
//! It goes back to the queue as if it had arrived now, so the head stays the head, and ages anew.
//! It yields only once: after that it keeps its slot, so every request ends however many urgent
//! ones arrive, and no two requests take slots from each other in turn.

use ebb_block_manager::pressure::victim;

use crate::batch::Batch;
use crate::scheduler::Scheduler;
use crate::slab::Key;
use crate::urgency::Urgency;

impl Scheduler {
    /// Preempts the sequences whose slots and promises the head of the queue needs, if there are
    /// enough that yield to it. Returns whether any did.
    pub(crate) fn yield_to_head(&mut self, head: Key, count: usize, batch: &mut Batch) -> bool {
        let Some(margin) = self.config.priority_margin else {
            return false;
        };
        // Without ageing the queue is served in order of arrival.
        if self.config.aging_steps == 0 {
            return false;
        }
        let limit = self.seqs[head].priority.saturating_add_unsigned(margin);
        let yields = |&&(_, key): &&(Urgency, Key)| {
            let seq = &self.seqs[key];
            seq.priority >= limit && seq.priority > self.seqs[head].priority && !seq.has_yielded
        };
        let mut candidates: Vec<Key> = Vec::new();
        candidates.extend(self.running.iter().filter(yields).map(|(_, key)| *key));

        let mut slots = (self.running_choices + count).saturating_sub(self.config.max_running);
        let promised = match self.policy.mode.shrinks() {
            true => self.promised_so_far(batch) + self.promise(head),
            false => 0,
        };
        let most = self.policy.promises_max(self.seqs[head].preempted);
        let mut frames = promised.saturating_sub(most);
        let all_slots: usize = candidates.iter().map(|key| self.sequence_count(*key)).sum();
        let all_frames: u64 = candidates.iter().map(|key| self.promise(*key)).sum();
        if all_slots < slots || all_frames < frames || (slots == 0 && frames == 0) {
            return false;
        }
        while slots > 0 || frames > 0 {
            let all = candidates.iter();
            let all = all.map(|key| (self.seqs[*key].priority, *key));
            let Some(key) = victim(all, |key| self.recompute_cost(key)) else {
                break;
            };
            candidates.retain(|other| *other != key);
            slots = slots.saturating_sub(self.sequence_count(key));
            frames = frames.saturating_sub(self.promise(key));
            self.yield_slot(key);
        }
        true
    }

    fn yield_slot(&mut self, key: Key) {
        self.counters.yields += 1;
        self.preempt(key);
        self.dequeue(key);
        let now = self.counters.steps;
        let seq = &mut self.seqs[key];
        seq.has_yielded = true;
        seq.urgency = seq
            .urgency
            .as_if_arrived(seq.priority, self.config.aging_steps, now);
        self.enqueue(key);
    }
}
