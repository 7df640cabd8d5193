//! Steps that come back: commits, sampled tokens, forks, failures.

use ebb_block_manager::pressure::BlockedBy;
use ebb_block_manager::{BLOCK_TOKENS, BlockId, SeqId, StepId};
use rustc_hash::FxHashSet;

use crate::group::Choice;
use crate::in_flight::{InFlight, Sent};
use crate::scheduler::Scheduler;
use crate::seq::{Resident, Seq};
use crate::slab::Key;
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
        for sent in &oldest.slices {
            if let Some(valid) = self.return_slice(sent) {
                self.slice_done(sent, valid, &mut outputs);
            } else {
                outputs.skip(sent);
            }
        }
        self.spare_in_flight.push(oldest);
    }

    pub(crate) fn step_failed(&mut self, step: StepId) {
        self.blocks.shrinks_failed(step);
        let oldest = self.retire(step);
        self.counters.steps_failed += 1;
        let copied: FxHashSet<u32> = oldest.copies.iter().map(|(_, copy)| *copy).collect();
        for sent in &oldest.slices {
            if let Some(in_memory) = self.return_slice(sent) {
                let copied = in_memory && self.writes_to_any(sent, &copied);
                self.slice_failed(sent);
                // What was to be copied may be gone by the next step: the sequence starts over.
                if copied && self.seqs.get(sent.seq).is_some() {
                    self.preempt(sent.seq);
                }
            }
        }
        self.spare_in_flight.push(oldest);
    }

    /// Whether the block that a slice begins in has one of `frames`.
    fn writes_to_any(&self, sent: &Sent, frames: &FxHashSet<u32>) -> bool {
        let index = sent.position as usize / BLOCK_TOKENS;
        let block = self.blocks.table(sent.id).get(index);
        block.is_some_and(|(_, own)| own.iter().any(|frame| frames.contains(frame)))
    }

    fn retire(&mut self, step: StepId) -> InFlight {
        let oldest = self.in_flight.pop_front();
        let oldest = oldest.unwrap_or_else(|| panic!("{step} came back, but none is in flight"));
        assert_eq!(
            oldest.step, step,
            "steps come back in the order in which they were planned"
        );
        let available = self.blocks.available();
        self.blocks.retire_step(step);
        // Where blocks shrink, frames come also while the next plan is made.
        let frames_come = self.blocks.available() > available || self.config.mode.shrinks();
        if frames_come {
            self.forget_frames_short();
        }
        oldest
    }

    /// Counts a slice as returned. `None`: its sequence is gone or an earlier failure voided it.
    /// `Some(true)`: the memory that it wrote is still its sequence's.
    fn return_slice(&mut self, sent: &Sent) -> Option<bool> {
        let seq = self.seqs.get_mut(sent.seq)?;
        seq.in_flight -= 1;
        let id = seq.resident.map(|resident| resident.id);
        (seq.epoch == sent.epoch).then_some(id == Some(sent.id))
    }

    fn slice_done(&mut self, sent: &Sent, in_memory: bool, outputs: &mut Outputs<'_>) {
        let key = sent.seq;
        let group = self.seqs[key].group;
        if sent.samples > 1 {
            let tokens: Option<Vec<_>> = (0..sent.samples)
                .filter_map(|choice| {
                    let output = outputs.take(sent, choice);
                    let live = self.groups[group].choices[choice as usize] != Choice::Ended;
                    live.then_some(output.map(|output| (choice, output)))
                })
                .collect();
            let Some(tokens) = tokens else {
                return self.slice_failed(sent);
            };
            self.written(sent, in_memory);
            return self.part(key, &tokens);
        }
        if sent.samples == 0 {
            self.written(sent, in_memory);
            let seq = &self.seqs[key];
            // Nothing was to be generated.
            if seq.max_tokens == 0 && sent.position + sent.len == seq.prompt_len {
                self.end_group(group, FinishReason::Length);
            }
            return;
        }
        let Some(output) = outputs.take(sent, sent.choice) else {
            return self.slice_failed(sent);
        };
        self.written(sent, in_memory);
        let seq = &mut self.seqs[key];
        seq.pending -= 1;
        seq.generated.push(output.token);
        if let Some(reason) = ending(seq, output) {
            let choice = seq.choice;
            self.end_choice(group, choice, reason);
        }
    }

    /// The slice's tokens are in the KV cache for certain.
    fn written(&mut self, sent: &Sent, in_memory: bool) {
        let seq = &mut self.seqs[sent.seq];
        let group = &mut self.groups[seq.group];
        seq.failures = 0;
        let end = sent.position + sent.len;
        if sent.all_rows {
            group.rows_done = end;
        }
        if !in_memory {
            return;
        }
        debug_assert_eq!(seq.committed, sent.position);
        seq.committed = end;
        let (from, to) = (sent.position as usize, end as usize);
        let prompt = &group.prompt;
        if from < prompt.len() {
            self.blocks
                .commit(sent.id, &prompt[from..to.min(prompt.len())]);
        }
        if to > prompt.len() {
            let from = from.saturating_sub(prompt.len());
            self.blocks
                .commit(sent.id, &seq.generated[from..to - prompt.len()]);
        }
        // A block that is full may be one that the first in the queue begins with.
        if from / BLOCK_TOKENS < to / BLOCK_TOKENS {
            self.forget_frames_short();
        }
    }

    /// The first in the queue may find memory now.
    fn forget_frames_short(&mut self) {
        if matches!(self.blocked_head, Some((_, BlockedBy::Frames))) {
            self.blocked_head = None;
        }
    }

    /// The slice's tokens count as not written, and what later steps in flight do with the sequence
    /// counts for nothing.
    fn slice_failed(&mut self, sent: &Sent) {
        let seq = &mut self.seqs[sent.seq];
        seq.failures += 1;
        seq.epoch += 1;
        seq.pending = 0;
        seq.computed = seq.committed;
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

    /// The prompt of a request with several choices is done and each live choice has its first
    /// token: from here on each is a sequence of its own. The first keeps the leader's.
    fn part(&mut self, leader: Key, tokens: &[(u32, ChoiceOutput)]) {
        let group = self.seqs[leader].group;
        let mut kept = false;
        // Choices that end with their first token end before the others part: they need no memory.
        for &(choice, output) in tokens {
            if let Some(reason) = first_ending(&self.seqs[leader], output) {
                self.end_choice(group, choice, reason);
            }
        }
        if self.groups.get(group).is_none() {
            return;
        }
        self.groups[group].leader = None;
        for &(choice, output) in tokens {
            if self.groups[group].choices[choice as usize] == Choice::Ended {
                continue;
            }
            let key = if kept {
                self.fork(leader, choice)
            } else {
                leader
            };
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

    /// A new sequence for `choice`: with memory if the leader has it, otherwise waiting like it.
    fn fork(&mut self, leader: Key, choice: u32) -> Key {
        let parent = &self.seqs[leader];
        let resident = parent.resident.map(|resident| {
            self.admissions += 1;
            let id = SeqId(self.admissions);
            Resident {
                id,
                slot: self.blocks.fork(resident.id, id),
            }
        });
        let child = Seq {
            choice,
            urgency: self.groups[parent.group].urgency.for_choice(choice),
            generated: Vec::new(),
            resident,
            // Slices in flight were the leader's.
            in_flight: 0,
            ..*parent
        };
        let key = self.seqs.insert(child);
        if resident.is_some() {
            self.run(key);
        } else {
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

/// The outputs of a step, looked up cheapest in the order of the slices.
struct Outputs<'a> {
    all: &'a [ChoiceOutput],
    next: usize,
}

impl Outputs<'_> {
    fn take(&mut self, sent: &Sent, choice: u32) -> Option<ChoiceOutput> {
        let wanted = |o: &ChoiceOutput| o.request == sent.request && o.choice == choice;
        if let Some(output) = self.all.get(self.next).filter(|o| wanted(o)) {
            self.next += 1;
            return Some(*output);
        }
        self.all.iter().copied().find(wanted)
    }

    /// Passes over the outputs of a slice that nobody waits for.
    fn skip(&mut self, sent: &Sent) {
        while self.all.get(self.next).is_some_and(|o| {
            o.request == sent.request && (sent.samples > 1 || o.choice == sent.choice)
        }) {
            self.next += 1;
        }
    }
}
