//! How choices end: finished, cancelled, too late, failed.

use ebb_block_manager::SeqBits;

use crate::group::Choice;
use crate::scheduler::Scheduler;
use crate::slab::Key;
use crate::{FinishReason, Millis, Notice};

impl Scheduler {
    /// Ends one choice, if it has not ended. Its memory goes back to the pool at once. Frames that
    /// steps in flight may touch become free when those retire.
    pub(crate) fn end_choice(&mut self, group: Key, choice: u32, reason: FinishReason) {
        let record = &mut self.groups[group];
        let before = std::mem::replace(&mut record.choices[choice as usize], Choice::Ended);
        if before == Choice::Ended {
            return;
        }
        record.active -= 1;
        let last = record.active == 0;
        let request = record.id;
        let seq = match before {
            Choice::Own(seq) => Some(seq),
            Choice::Sharing => record.leader,
            Choice::Ended => None,
        };
        let bits = seq.map_or_else(Default::default, |seq| self.seq_bits(seq));
        match before {
            Choice::Own(seq) => self.drop_seq(seq),
            Choice::Sharing => {
                let record = &self.groups[group];
                let leader = record.leader.expect("sharing choices have a leader");
                if last {
                    self.drop_seq(leader);
                } else {
                    let first = record.active_choices().next().expect("a choice is active");
                    let seq = &mut self.seqs[leader];
                    seq.choice = first;
                    if seq.resident.is_some() {
                        self.running_choices -= 1;
                    } else {
                        self.waiting_choices -= 1;
                    }
                    // If it waits, it asks for less now.
                    self.blocked_head = None;
                }
            }
            Choice::Ended => {}
        }
        self.counters.choices_finished += 1;
        self.notices.push(Notice::Finished {
            request,
            choice,
            reason,
            bits,
        });
        if last {
            let record = self.groups.remove(group);
            self.requests.remove(&request);
            if let Some(deadline) = record.deadline {
                self.deadlines.remove(&(deadline, group));
            }
        }
    }

    /// Ends every active choice of a request.
    pub(crate) fn end_group(&mut self, group: Key, reason: FinishReason) {
        for choice in 0..self.groups[group].choices.len() as u32 {
            // The group is removed with its last active choice.
            if self.groups.get(group).is_some() {
                self.end_choice(group, choice, reason);
            }
        }
    }

    /// Moves time on and ends requests whose deadline has passed.
    pub(crate) fn tick(&mut self, now: Millis) {
        self.now = self.now.max(now);
        while let Some(&(deadline, group)) = self.deadlines.first()
            && deadline <= self.now
        {
            self.end_group(group, FinishReason::DeadlineExceeded);
        }
    }

    /// Bits at which a sequence has read its context.
    pub(crate) fn seq_bits(&self, key: Key) -> SeqBits {
        let seq = &self.seqs[key];
        match seq.resident {
            Some(resident) => seq.bits.and(self.blocks.bits(resident.id)),
            None => seq.bits,
        }
    }

    /// Removes a sequence from the batch or the queue.
    fn drop_seq(&mut self, key: Key) {
        self.drop_taken_state(key);
        if let Some(resident) = self.seqs[key].resident {
            self.stop_running(key);
            self.running_choices -= 1;
            self.blocked_head = None;
            self.blocks.release(resident.id);
        } else {
            self.waiting_choices -= 1;
            self.dequeue(key);
        }
        self.seqs.remove(key);
    }
}
