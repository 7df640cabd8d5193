//! Admission: the head of the queue gets memory, if all running sequences still fit.

use ebb_block_manager::pressure::{BlockedBy, PromptNeeds};
use ebb_block_manager::{BLOCK_TOKENS, PrefixCursor, SeqId, precision::MinBits};

use crate::batch::Batch;
use crate::group::Group;
use crate::scheduler::Scheduler;
use crate::seq::{Resident, Seq};
use crate::slab::Key;
use crate::{Mode, Notice};

/// The head of the queue, and what the prefix cache has of its prompt. While it waits for memory it
/// is looked up in every plan.
#[derive(Debug, Default)]
pub(crate) struct Candidate {
    seq: Option<Key>,
    cursor: PrefixCursor,
}

impl Scheduler {
    /// Admits waiting sequences in order of urgency while tokens and memory last. The head of the
    /// queue is never overtaken, so a stream of small requests cannot starve a large one.
    pub(crate) fn admit(&mut self, batch: &mut Batch) {
        while batch.token_budget > 0
            && let Some((_, &key)) = self.waiting.first_key_value()
        {
            let count = self.sequence_count(key);
            // A preempted sequence first gets the tokens that steps in flight sample for it.
            if self.seqs[key].in_flight > 0 {
                return;
            }
            if self.running_choices + count > self.config.max_running {
                batch.replan = self.yield_to_head(key, count, batch);
                return;
            }
            if let Err(reason) = self.can_admit(key, count, batch) {
                batch.replan =
                    reason == BlockedBy::Promises && self.yield_to_head(key, count, batch);
                self.blocked_head = (!batch.replan).then_some((key, reason));
                return;
            }
            self.give_memory(key, count);
            self.plan_prefill(key, batch);
            if batch.memory_short {
                return;
            }
        }
    }

    fn can_admit(&mut self, key: Key, count: usize, batch: &mut Batch) -> Result<(), BlockedBy> {
        let runs_alone = self.running.is_empty();
        if self.policy.needs_room_at_16_bit(runs_alone) && !self.fits_at_16_bit(key, count, batch) {
            return Err(BlockedBy::Frames);
        }
        if self.policy.mode.shrinks() && !self.promise_fits(key, batch) {
            return Err(BlockedBy::Promises);
        }
        Ok(())
    }

    /// Whether a sequence fits at 16 bit beside those that run.
    fn fits_at_16_bit(&mut self, key: Key, count: usize, batch: &Batch) -> bool {
        self.set_candidate(key);
        let cacheable = self.cacheable(key);
        let seq = &self.seqs[key];
        let tokens = known_tokens(seq, &self.groups[seq.group], &mut self.scratch);
        let cursor = &mut self.candidate.cursor;
        let hit = self
            .blocks
            .lookup_from(cursor, tokens, cacheable, seq.options.min_bits);
        let fresh = self.frames_at_most(u64::from(seq.known()) - hit.tokens as u64);
        let needs = PromptNeeds {
            prompt: fresh + u64::from(hit.frames_revived),
            fork: self.fork_frames(key),
            running_prompts: batch.prompt_frames,
            sequences: (self.running_choices + count) as u64,
        };
        let runs_alone = self.running.is_empty();
        let available = self.blocks.available();
        self.policy.fits_at_16_bit(&needs, runs_alone, available)
    }

    /// Makes a sequence the candidate.
    fn set_candidate(&mut self, key: Key) {
        if self.candidate.seq != Some(key) {
            self.candidate.seq = Some(key);
            self.candidate.cursor.clear();
        }
    }

    /// Makes a waiting sequence a running one.
    fn give_memory(&mut self, key: Key, count: usize) {
        self.set_candidate(key);
        self.admissions += 1;
        let id = SeqId(self.admissions);
        let cacheable = self.cacheable(key);
        let seq = &self.seqs[key];
        let tokens = known_tokens(seq, &self.groups[seq.group], &mut self.scratch);
        let cursor = &mut self.candidate.cursor;
        let created = self
            .blocks
            .create_from(id, cursor, tokens, cacheable, seq.options);
        if self.policy.mode == Mode::Static && self.config.recent_permille > 0 {
            // Until the rule lets them go.
            self.blocks.keep_recent(id, 0);
        }
        self.candidate.seq = None;
        self.blocked_head = None;
        self.dequeue(key);

        let cached = created.cached_tokens as u32;
        let seq = &mut self.seqs[key];
        seq.resident = Some(Resident {
            id,
            slot: created.slot,
        });
        (seq.computed, seq.committed, seq.reserved) = (cached, cached, cached);
        seq.preempted = false;
        self.begin_states(key, created.alike_tokens, created.state);
        let seq = &self.seqs[key];
        let group = &mut self.groups[seq.group];
        if !group.admitted {
            group.admitted = true;
            self.counters.prefix_query_tokens += u64::from(seq.prompt_len);
            self.counters.prefix_hit_tokens += u64::from(cached);
            self.notices.push(Notice::Admitted {
                request: seq.request,
                cached_tokens: cached,
            });
        }
        self.waiting_choices -= count;
        self.running_choices += count;
        self.run(key);
    }

    /// Whether a sequence shares no blocks through the prefix cache. In static mode what it reads
    /// is fixed: a cached block may be at another level than its own would be, and others could
    /// keep its own blocks from shrinking.
    pub(crate) fn is_private(&self, min_bits: MinBits) -> bool {
        self.config.mode == Mode::Static && min_bits < MinBits::SIXTEEN
    }

    /// How many tokens of a sequence may come from the prefix cache. At least one is computed, to
    /// sample from. So are prompt tokens whose logits have not been delivered yet.
    fn cacheable(&self, key: Key) -> usize {
        let seq = &self.seqs[key];
        if seq.options.is_private {
            return 0;
        }
        let delivered = seq
            .logprobs
            .then(|| self.groups[seq.group].logits_delivered);
        let most = match delivered {
            Some(done) if done < seq.prompt_len => done.min(seq.known() - 1),
            _ => seq.known() - 1,
        };
        most as usize
    }

    /// Frames that the choices of a shared sequence will take when they fork: each but one copies
    /// the open block that the prompt ends in.
    pub(crate) fn fork_frames(&self, key: Key) -> u64 {
        let seq = &self.seqs[key];
        if !seq.is_shared() {
            return 0;
        }
        let open = u64::from(seq.prompt_len) % BLOCK_TOKENS as u64;
        self.frames_of(open) * u64::from(self.groups[seq.group].active - 1)
    }
}

/// The known tokens of a sequence as one slice, in `scratch` if they are not one already.
fn known_tokens<'a>(seq: &Seq, group: &'a Group, scratch: &'a mut Vec<u32>) -> &'a [u32] {
    if seq.generated.is_empty() {
        return &group.prompt;
    }
    scratch.clear();
    scratch.extend_from_slice(&group.prompt);
    scratch.extend_from_slice(&seq.generated);
    scratch
}
