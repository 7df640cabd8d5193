//! Promises: the frames that admission sets aside for running sequences, where blocks shrink. Each
//! is promised its longest length at its floor ([`Seq::promised_frames`](crate::seq::Seq)).

use crate::batch::Batch;
use crate::scheduler::Scheduler;
use crate::slab::Key;

impl Scheduler {
    /// Frames promised to the running sequences.
    pub(crate) fn frames_promised(&self) -> u64 {
        if !self.policy.mode.shrinks() {
            return 0;
        }
        let promise = |&(_, key): &(_, Key)| self.promise(key);
        self.running.iter().map(promise).sum()
    }

    pub(crate) fn promise(&self, key: Key) -> u64 {
        self.seqs[key].promised_frames * self.sequence_count(key) as u64
    }

    /// [`frames_promised`](Self::frames_promised), added up once a plan.
    pub(crate) fn promised_so_far(&self, batch: &mut Batch) -> u64 {
        *batch
            .frames_promised
            .get_or_insert_with(|| self.frames_promised())
    }

    /// How many choices may run once they fork from a shared sequence: as many as promises can be
    /// kept for. A request that came to run alone may have more choices than fit together; one
    /// always does. The others wait.
    pub(crate) fn choices_to_run(&self, leader: Key) -> u32 {
        let seq = &self.seqs[leader];
        let choices = self.groups[seq.group].active;
        if !self.policy.mode.shrinks() || seq.resident.is_none() {
            return choices;
        }
        let others = self.frames_promised() - self.promise(leader);
        let left = self
            .policy
            .promises_max(seq.preempted)
            .saturating_sub(others);
        let fit = left.checked_div(seq.promised_frames);
        fit.map_or(choices, |fit| fit.clamp(1, choices.into()) as u32)
    }

    /// Whether a waiting sequence's promise can be kept beside those given. One that runs alone
    /// needs none: it was checked on arrival that each of its choices fits, and no more of them run
    /// than fit together ([`choices_to_run`](Self::choices_to_run)).
    pub(crate) fn promise_fits(&self, key: Key, batch: &mut Batch) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let sum = self.promised_so_far(batch) + self.promise(key);
        let fits = sum <= self.policy.promises_max(self.seqs[key].preempted);
        if fits {
            batch.frames_promised = Some(sum);
        }
        fits
    }
}
