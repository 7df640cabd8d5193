//! Preemption: a sequence loses its memory, waits, and is computed again.

use ebb_block_manager::pressure::{Policy, RecomputeCost, Remedy, victim};

use crate::Notice;
use crate::scheduler::Scheduler;
use crate::slab::Key;
use crate::states::StateMarks;

impl Scheduler {
    /// The sequence to preempt, if there is one besides the most urgent one.
    pub(crate) fn victim(&self) -> Option<Key> {
        let candidates = self.running.get(1..)?.iter();
        let candidates = candidates.map(|(_, key)| (self.seqs[*key].priority, *key));
        victim(candidates, |key| self.recompute_cost(key))
    }

    pub(crate) fn recompute_cost(&self, key: Key) -> RecomputeCost {
        let seq = &self.seqs[key];
        let Some(resident) = seq.resident else {
            return RecomputeCost::new(0, 0, 0);
        };
        let frames = u64::from(self.blocks.releasable_frames(resident.id));
        let computed = u64::from(seq.computed);
        // What others hold as well stays, and comes back as a prefix hit.
        let kept = (self.blocks.shared_tokens(resident.id) as u64).min(computed);
        RecomputeCost::new(computed, kept, frames)
    }

    /// Takes a sequence's memory. Its tokens stay, those that steps in flight are sampling
    /// included; it waits in its old order and will be computed again.
    pub(crate) fn preempt(&mut self, key: Key) {
        self.drop_taken_state(key);
        self.stop_running(key);
        let weight = self.sequence_count(key);
        self.running_choices -= weight;
        self.waiting_choices += weight;
        self.blocked_head = None;
        let seq = &mut self.seqs[key];
        let resident = seq.resident.take().expect("a running sequence has memory");
        seq.bits = seq.bits.and(self.blocks.bits(resident.id));
        seq.at_floor = (0, 0);
        seq.states = StateMarks::default();
        self.counters.preemptions += 1;
        self.counters.preempted_tokens += u64::from(seq.computed);
        (seq.computed, seq.committed, seq.reserved) = (0, 0, 0);
        seq.preempted = true;
        self.notices.push(Notice::Preempted {
            request: seq.request,
            choice: seq.choice,
        });
        self.blocks.release(resident.id);
        self.enqueue(key);
    }

    /// Where blocks shrink: nothing runs, nothing is in flight and nothing can shrink, so one
    /// sequence gives up its memory. False if none runs.
    pub(crate) fn preempt_when_stuck(&mut self) -> bool {
        let Some(&(_, first)) = self.running.first() else {
            return false;
        };
        let victim = self.victim();
        let seq = &mut self.seqs[first];
        let known = seq.known();
        let has_restarted = seq.restarted_at >= known;
        match Policy::remedy_when_stuck(victim.is_some(), has_restarted) {
            Remedy::Preempt => self.preempt(victim.unwrap_or(first)),
            Remedy::Restart => {
                seq.restarted_at = known;
                self.preempt(first);
            }
            Remedy::Wait | Remedy::Fail => self.fail(first),
        }
        true
    }
}
