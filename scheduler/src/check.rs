//! The audit: invariants that hold between any two events.

use crate::group::Choice;
use crate::scheduler::Scheduler;

/// Fails the audit with a sentence.
macro_rules! ensure {
    ($condition:expr, $($sentence:tt)+) => {
        if !$condition {
            return Err(format!($($sentence)+));
        }
    };
}

impl Scheduler {
    /// Audits every invariant of the scheduler and the pool. For tests and simulation: it takes
    /// time in the size of everything.
    pub fn check(&self) -> Result<(), String> {
        self.check_lists()?;
        self.check_sequences()?;
        self.check_groups()?;
        let usage = self.blocks.usage();
        let frames = [
            usage.frames_free,
            usage.frames_retiring,
            usage.frames_live,
            usage.frames_hidden,
            usage.frames_cached,
            usage.frames_shrinking,
        ];
        let sum: u32 = frames.iter().sum();
        ensure!(
            sum == usage.frames_total,
            "{sum} of {} frames",
            usage.frames_total
        );
        self.blocks.check()
    }

    fn check_lists(&self) -> Result<(), String> {
        let (config, running) = (&self.config, self.running.len());
        ensure!(
            running + self.waiting.len() == self.seqs.len(),
            "a sequence runs or waits"
        );
        ensure!(
            self.running.is_sorted(),
            "the running list is in order of urgency"
        );
        let choices: usize = self
            .running
            .iter()
            .map(|(_, key)| self.sequence_count(*key))
            .sum();
        ensure!(choices == self.running_choices, "{choices} choices run");
        ensure!(
            choices <= config.max_running,
            "{choices} choices run: too many"
        );
        // The last request taken may have more choices than that. They fork and are preempted one
        // by one.
        let most = self.groups.iter().map(|(_, group)| group.choices.len());
        let bound = config.max_waiting + config.max_running + most.max().unwrap_or(1) - 1;
        ensure!(
            self.waiting.len() <= bound,
            "{} wait: too many",
            self.waiting.len()
        );
        let choices: usize = self
            .waiting
            .values()
            .map(|key| self.sequence_count(*key))
            .sum();
        ensure!(choices == self.waiting_choices, "{choices} choices wait");
        ensure!(
            self.in_flight.len() <= config.max_in_flight,
            "too many steps in flight"
        );
        ensure!(
            self.blocks.usage().sequences as usize == running,
            "the pool's sequences are the running ones"
        );
        for (urgency, key) in &self.running {
            let seq = self.seqs.get(*key).ok_or("a running sequence is gone")?;
            ensure!(
                seq.resident.is_some() && !seq.preempted,
                "{} runs",
                seq.request
            );
            ensure!(seq.urgency == *urgency, "{} has moved", seq.request);
        }
        let mut preempted = 0;
        for (urgency, key) in &self.waiting {
            let seq = self.seqs.get(*key).ok_or("a waiting sequence is gone")?;
            ensure!(seq.resident.is_none(), "{} waits with memory", seq.request);
            ensure!(seq.urgency == *urgency, "{} has moved", seq.request);
            preempted += usize::from(seq.preempted);
        }
        ensure!(
            preempted == self.counters.waiting_preempted,
            "{preempted} wait preempted"
        );
        let promised = self.frames_promised();
        let kept =
            self.config.overcommit_percent > 100 || promised <= u64::from(self.policy.capacity);
        let alone = self.running.len() <= 1;
        ensure!(
            kept || alone,
            "{promised} frames are promised of {}",
            self.policy.capacity
        );
        Ok(())
    }

    fn check_sequences(&self) -> Result<(), String> {
        let taken = self.seqs.iter().filter(|(_, seq)| seq.states.has_taken());
        let (taken, slots) = (taken.count(), self.blocks.states_taken());
        ensure!(
            taken == slots,
            "{taken} sequences have taken {slots} states"
        );
        for (key, seq) in self.seqs.iter() {
            let (id, choice) = (seq.request, seq.choice);
            let slices = || self.in_flight.iter().flat_map(|step| &step.slices);
            let in_flight = slices().filter(|slice| slice.seq == key).count();
            ensure!(
                seq.in_flight as usize == in_flight,
                "{id} choice {choice} has {in_flight} slices out"
            );
            let mut position = seq.committed;
            let mut pending = 0;
            for slice in slices().filter(|slice| slice.seq == key && slice.epoch == seq.epoch) {
                pending += u32::from(slice.samples == 1);
                if seq.resident.is_some() {
                    ensure!(
                        slice.position == position,
                        "{id} choice {choice} leaves a gap at {position}"
                    );
                    position += slice.len;
                }
            }
            ensure!(
                position == seq.computed,
                "{id} choice {choice} is computed to {position}"
            );
            ensure!(
                pending == seq.pending,
                "{id} choice {choice} awaits {pending} tokens"
            );
            ensure!(
                seq.computed <= seq.known() + seq.pending,
                "{id} choice {choice} is ahead of its tokens"
            );
            let sampled = seq.generated.len() as u32 + seq.pending;
            ensure!(
                sampled <= seq.max_tokens,
                "{id} choice {choice} generates too much"
            );
            ensure!(
                !seq.is_shared() || sampled == 0,
                "{id} choice {choice} generates while shared"
            );
        }
        Ok(())
    }

    fn check_groups(&self) -> Result<(), String> {
        ensure!(
            self.requests.len() == self.groups.len(),
            "requests are groups"
        );
        let with_deadline = self
            .groups
            .iter()
            .filter(|(_, g)| g.deadline.is_some())
            .count();
        ensure!(
            self.deadlines.len() == with_deadline,
            "{with_deadline} deadlines"
        );
        let mut seqs = 0;
        for (key, group) in self.groups.iter() {
            ensure!(
                self.requests.get(&group.id) == Some(&key),
                "{} is named",
                group.id
            );
            let live = group.active_choices().count();
            ensure!(
                live > 0 && live == group.active as usize,
                "{} has {live} choices",
                group.id
            );
            if let Some(deadline) = group.deadline {
                ensure!(deadline > self.now, "{} is late", group.id);
                ensure!(
                    self.deadlines.contains(&(deadline, key)),
                    "{} has one",
                    group.id
                );
            }
            seqs += usize::from(group.leader.is_some());
            for (choice, state) in group.choices.iter().enumerate() {
                let seq = match state {
                    Choice::Ended => continue,
                    Choice::Sharing => group.leader.and_then(|leader| self.seqs.get(leader)),
                    Choice::Own(seq) => self.seqs.get(*seq),
                };
                let seq = seq.ok_or_else(|| format!("{} lost choice {choice}", group.id))?;
                let own = *state != Choice::Sharing;
                seqs += usize::from(own);
                ensure!(
                    seq.group == key && own != seq.is_shared(),
                    "{} is mixed up",
                    group.id
                );
                ensure!(
                    !own || seq.choice as usize == choice,
                    "{} is mixed up",
                    group.id
                );
            }
        }
        ensure!(
            seqs == self.seqs.len(),
            "{} sequences belong to nobody",
            self.seqs.len() - seqs
        );
        Ok(())
    }
}
