//! Steps that return: commits, sampled tokens, forks, failures.

use ebb_block_manager::pressure::BlockedBy;
use ebb_block_manager::{BLOCK_TOKENS, BlockId, SeqId, StepId};
use rustc_hash::FxHashSet;

use crate::group::Choice;
use crate::in_flight::{SliceInFlight, StepInFlight};
use crate::scheduler::Scheduler;
use crate::seq::{Resident, Seq};
use crate::slab::Key;
use crate::states::StateMarks;
use crate::{ChoiceOutput, FAILURES_MAX, FinishReason};

impl Scheduler {
    pub(crate) fn step_done(
        &mut self,
        step: StepId,
        outputs: &[ChoiceOutput],
        failed_shrinks: &[BlockId],
    ) {
        for &block in failed_shrinks {
            self.blocks.shrink_failed(step, block);
        }
        self.counters.shrinks_failed += failed_shrinks.len() as u64;
        let oldest = self.retire(step);
        let mut outputs = Outputs {
            all: outputs,
            next: 0,
        };
        for slice in &oldest.slices {
            if let Some(valid) = self.take_back(slice) {
                self.slice_done(slice, valid, &mut outputs);
            } else {
                outputs.skip(slice);
            }
        }
        self.spare_in_flight.push(oldest);
    }

    pub(crate) fn step_failed(&mut self, step: StepId) {
        self.blocks.shrinks_failed(step);
        let oldest = self.retire(step);
        self.counters.steps_failed += 1;
        let copied: FxHashSet<u32> = oldest.copies.iter().map(|(_, copy)| *copy).collect();
        for slice in &oldest.slices {
            let is_valid = self.take_back(slice).is_some();
            let lost_copy = self.holds(slice) && self.writes_to_any(slice, &copied);
            if is_valid {
                self.slice_failed(slice);
            }
            // What was to be copied may be gone by the next step, so it is computed again. A slice
            // that was void already was to copy it, too, for those planned since.
            if lost_copy && let Some(seq) = self.seqs.get_mut(slice.seq) {
                seq.undo_uncommitted();
                self.preempt(slice.seq);
            }
        }
        if self.has_states() {
            self.lose_states();
        }
        self.spare_in_flight.push(oldest);
    }

    /// Whether the slice's sequence still has the memory that the slice wrote.
    fn holds(&self, slice: &SliceInFlight) -> bool {
        let resident = self.seqs.get(slice.seq).and_then(|seq| seq.resident);
        resident.is_some_and(|resident| resident.id == slice.id)
    }

    /// Whether the block that a slice begins in owns one of `frames`.
    fn writes_to_any(&self, slice: &SliceInFlight, frames: &FxHashSet<u32>) -> bool {
        let index = slice.position as usize / BLOCK_TOKENS;
        let block = self.blocks.table(slice.id).get(index);
        block.is_some_and(|(_, own)| own.iter().any(|frame| frames.contains(frame)))
    }

    fn retire(&mut self, step: StepId) -> StepInFlight {
        let oldest = self.in_flight.pop_front();
        let oldest = oldest.unwrap_or_else(|| panic!("{step} returned, but none is in flight"));
        assert_eq!(
            oldest.step, step,
            "steps return in the order in which they were planned"
        );
        let available = self.blocks.available();
        self.blocks.retire_step(step);
        // Where blocks shrink, frames also come free while the next step is planned.
        let frames_come = self.blocks.available() > available || self.config.mode.shrinks();
        if frames_come {
            self.unblock_head();
        }
        oldest
    }

    /// Counts a slice as returned. `None`: its sequence has ended, or an earlier failure made it
    /// void. `Some(true)`: its sequence still has the memory that the slice wrote.
    fn take_back(&mut self, slice: &SliceInFlight) -> Option<bool> {
        let seq = self.seqs.get_mut(slice.seq)?;
        seq.in_flight -= 1;
        let is_valid = seq.epoch == slice.epoch;
        is_valid.then(|| self.holds(slice))
    }

    fn slice_done(&mut self, slice: &SliceInFlight, in_memory: bool, outputs: &mut Outputs<'_>) {
        let key = slice.seq;
        let group = self.seqs[key].group;
        if slice.samples > 1 {
            let tokens: Option<Vec<_>> = (0..slice.samples)
                .filter_map(|choice| {
                    let output = outputs.take(slice, choice);
                    let live = self.groups[group].choices[choice as usize] != Choice::Ended;
                    live.then_some(output.map(|output| (choice, output)))
                })
                .collect();
            let Some(tokens) = tokens else {
                return self.sample_lost(slice);
            };
            self.commit_slice(slice, in_memory);
            return self.fork_choices(key, &tokens);
        }
        if slice.samples == 0 {
            self.commit_slice(slice, in_memory);
            let seq = &self.seqs[key];
            // Nothing was to be generated.
            if seq.max_tokens == 0 && slice.position + slice.len == seq.prompt_len {
                self.end_group(group, FinishReason::Length);
            }
            return;
        }
        let Some(output) = outputs.take(slice, slice.choice) else {
            return self.sample_lost(slice);
        };
        self.commit_slice(slice, in_memory);
        let seq = &mut self.seqs[key];
        seq.pending -= 1;
        seq.generated.push(output.token);
        if let Some(reason) = ending(seq, output) {
            let choice = seq.choice;
            self.end_choice(group, choice, reason);
        }
    }

    /// Commits the slice's tokens: they are in the KV cache for certain.
    fn commit_slice(&mut self, slice: &SliceInFlight, in_memory: bool) {
        let seq = &mut self.seqs[slice.seq];
        let group = &mut self.groups[seq.group];
        seq.failures = 0;
        let end = slice.position + slice.len;
        if slice.all_logits {
            group.logits_delivered = end;
        }
        if !in_memory {
            return;
        }
        debug_assert_eq!(seq.committed, slice.position);
        seq.committed = end;
        let (from, to) = (slice.position as usize, end as usize);
        let prompt = &group.prompt;
        if from < prompt.len() {
            self.blocks
                .commit(slice.id, &prompt[from..to.min(prompt.len())]);
        }
        if to > prompt.len() {
            let from = from.saturating_sub(prompt.len());
            self.blocks
                .commit(slice.id, &seq.generated[from..to - prompt.len()]);
        }
        self.keep_state(slice.seq);
        // A block that is full may be one that the head of the queue begins with.
        if from / BLOCK_TOKENS < to / BLOCK_TOKENS {
            self.unblock_head();
        }
    }

    /// The head of the queue may fit now.
    fn unblock_head(&mut self) {
        if matches!(self.blocked_head, Some((_, BlockedBy::Frames))) {
            self.blocked_head = None;
        }
    }

    /// The step ran, and did not sample for the slice: it counts as not computed.
    fn sample_lost(&mut self, slice: &SliceInFlight) {
        self.slice_failed(slice);
        let seq = self.seqs.get(slice.seq);
        if self.has_states() && seq.is_some_and(|seq| seq.resident.is_some()) {
            // Its state has come further, and cannot go back.
            self.preempt(slice.seq);
        }
    }

    /// Counts the slice's tokens as not computed. What later steps in flight compute of its
    /// sequence is void.
    fn slice_failed(&mut self, slice: &SliceInFlight) {
        let seq = &mut self.seqs[slice.seq];
        seq.failures += 1;
        seq.undo_uncommitted();
        self.drop_taken_state(slice.seq);
        let seq = &self.seqs[slice.seq];
        if seq.failures < FAILURES_MAX {
            return;
        }
        let group = seq.group;
        if seq.is_shared() {
            self.end_group(group, FinishReason::Error);
        } else {
            let choice = seq.choice;
            self.end_choice(group, choice, FinishReason::Error);
        }
    }

    /// The prompt of a request with several choices is done and each active choice has its first
    /// token. From now on each is a sequence. The first of them keeps the leader's.
    fn fork_choices(&mut self, leader: Key, tokens: &[(u32, ChoiceOutput)]) {
        let group = self.seqs[leader].group;
        let mut kept = false;
        // Choices that end with their first token end before the others fork: they need no memory.
        for &(choice, output) in tokens {
            if let Some(reason) = first_ending(&self.seqs[leader], output) {
                self.end_choice(group, choice, reason);
            }
        }
        if self.groups.get(group).is_none() {
            return;
        }
        let mut may_run = self.choices_to_run(leader);
        self.groups[group].leader = None;
        for &(choice, output) in tokens {
            if self.groups[group].choices[choice as usize] == Choice::Ended {
                continue;
            }
            let key = if kept {
                self.fork(leader, choice, may_run > 0)
            } else {
                leader
            };
            may_run = may_run.saturating_sub(1);
            let seq = &mut self.seqs[key];
            seq.choice = choice;
            seq.sharing = 1;
            seq.generated.clear();
            seq.generated.push(output.token);
            // The open block is shared now, and the next append copies it.
            seq.reserved = 0;
            self.groups[group].choices[choice as usize] = Choice::Own(key);
            kept = true;
        }
    }

    /// A new sequence for `choice`. It waits if the leader does or it may not run. Then it is
    /// admitted like any other, and computes the prompt again as far as the prefix cache has lost
    /// it.
    fn fork(&mut self, leader: Key, choice: u32, may_run: bool) -> Key {
        let parent = &self.seqs[leader];
        let leader_runs = parent.resident.is_some();
        let resident = parent.resident.filter(|_| may_run).map(|resident| {
            self.admissions += 1;
            let id = SeqId(self.admissions);
            Resident {
                id,
                slot: self.blocks.fork(resident.id, id),
            }
        });
        if let (Some(resident), Some(leader)) = (resident, parent.resident)
            && self.has_states()
        {
            self.state_copies.push((leader.slot.0, resident.slot.0));
        }
        let mut child = Seq {
            choice,
            urgency: self.groups[parent.group].urgency.for_choice(choice),
            generated: Vec::new(),
            resident,
            // Slices in flight are the leader's.
            in_flight: 0,
            states: StateMarks::default(),
            ..*parent
        };
        if resident.is_none() {
            // Its first token was computed with the leader's memory.
            child.bits = self.seq_bits(leader);
            (child.computed, child.committed) = (0, 0);
            (child.reserved, child.at_floor) = (0, (0, 0));
        }
        let key = self.seqs.insert(child);
        if resident.is_some() {
            self.run(key);
        } else {
            let moved = usize::from(leader_runs);
            self.running_choices -= moved;
            self.waiting_choices += moved;
            self.blocked_head = None;
            self.enqueue(key);
        }
        key
    }
}

/// How a sequence ends with the token just appended, if it does.
fn ending(seq: &Seq, output: ChoiceOutput) -> Option<FinishReason> {
    if output.finish {
        Some(FinishReason::Stop)
    } else if seq.generated.len() as u32 >= seq.max_tokens {
        Some(FinishReason::Length)
    } else {
        None
    }
}

/// The same for the first token of a choice.
fn first_ending(leader: &Seq, output: ChoiceOutput) -> Option<FinishReason> {
    if output.finish {
        Some(FinishReason::Stop)
    } else {
        (leader.max_tokens <= 1).then_some(FinishReason::Length)
    }
}

/// The outputs of a step. Looking them up is cheapest in the order of the slices.
struct Outputs<'a> {
    all: &'a [ChoiceOutput],
    next: usize,
}

impl Outputs<'_> {
    fn take(&mut self, slice: &SliceInFlight, choice: u32) -> Option<ChoiceOutput> {
        let wanted = |o: &ChoiceOutput| o.request == slice.request && o.choice == choice;
        if let Some(output) = self.all.get(self.next).filter(|o| wanted(o)) {
            self.next += 1;
            return Some(*output);
        }
        self.all.iter().copied().find(wanted)
    }

    /// Skips the outputs of a void slice.
    fn skip(&mut self, slice: &SliceInFlight) {
        while self.all.get(self.next).is_some_and(|o| {
            o.request == slice.request && (slice.samples > 1 || o.choice == slice.choice)
        }) {
            self.next += 1;
        }
    }
}
