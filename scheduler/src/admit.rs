//! Admission: the most urgent waiting sequence gets memory if everybody admitted still fits.

use ebb_block_manager::{BLOCK_TOKENS, PrefixCursor, SUB_BLOCK_TOKENS, SeqId, schedule::Bound};

use crate::batch::Batch;
use crate::group::Group;
use crate::room::Shortage;
use crate::scheduler::Scheduler;
use crate::seq::{Resident, Seq};
use crate::slab::Key;
use crate::{Admission, Mode, Notice};

/// The sequence that is next to be admitted, and what is known of its prefix in the cache: while
/// it waits for memory it is looked up in every plan.
#[derive(Debug, Default)]
pub(crate) struct Candidate {
    seq: Option<Key>,
    cursor: PrefixCursor,
}

impl Scheduler {
    /// Admits waiting sequences in order of urgency while rows and memory last. Nobody overtakes
    /// one that does not fit: a stream of small requests cannot starve a large one.
    pub(crate) fn admit(&mut self, batch: &mut Batch) {
        while batch.rows_left > 0
            && let Some((_, &key)) = self.waiting.first_key_value()
        {
            let weight = self.weight(key);
            // A preempted sequence first gets the tokens back that steps in flight sample for it.
            if self.running_choices + weight > self.config.max_running
                || self.seqs[key].in_flight > 0
            {
                return;
            }
            if let Err(shortage) = self.may_start(key, weight, batch) {
                self.held_up = Some((key, shortage));
                return;
            }
            self.start(key, weight);
            self.plan_prefill(key, batch);
            if batch.pressed {
                return;
            }
        }
    }

    fn may_start(&mut self, key: Key, weight: usize, batch: &mut Batch) -> Result<(), Shortage> {
        let shrinks = self.config.mode.shrinks();
        // Where blocks shrink, it fits alone once its own do: that was checked on arrival.
        let asks_for_room =
            !shrinks || (self.config.admission == Admission::Queue && !self.running.is_empty());
        if asks_for_room && !self.fits(key, weight, batch) {
            return Err(Shortage::Frames);
        }
        if shrinks && !self.fits_at_floor(key, batch) {
            return Err(Shortage::Promises);
        }
        Ok(())
    }

    /// Whether a sequence can be admitted so that every running one, this one included, can
    /// complete its prompt and then decode [`headroom_tokens`] more at 16 bit without a preemption.
    /// With nothing running, the pool itself is the only bound.
    ///
    /// [`headroom_tokens`]: crate::Config::headroom_tokens
    fn fits(&mut self, key: Key, weight: usize, batch: &Batch) -> bool {
        let available = u64::from(self.blocks.available());
        let alone = self.running.is_empty();
        let sub_blocks = u64::from(self.config.headroom_tokens).div_ceil(SUB_BLOCK_TOKENS as u64);
        let sequences = (self.running_choices + weight) as u64;
        let headroom = self.frames_of(sub_blocks * SUB_BLOCK_TOKENS as u64) * sequences;
        let spoken_for = if alone { 0 } else { batch.promised + headroom };

        self.consider(key);
        let cacheable = self.cacheable(key);
        let seq = &self.seqs[key];
        let tokens = known_tokens(seq, &self.groups[seq.group], &mut self.scratch);
        let cursor = &mut self.candidate.cursor;
        let hit = self
            .blocks
            .lookup_from(cursor, tokens, cacheable, seq.terms.bound);
        let fresh = self.frames_of(u64::from(seq.known())) - self.frames_of(hit.tokens as u64);
        let parting = if alone { 0 } else { self.parting_frames(key) };
        fresh + u64::from(hit.frames_revived) + parting + spoken_for <= available
    }

    /// Starts to keep what is found of a sequence's prefix.
    fn consider(&mut self, key: Key) {
        if self.candidate.seq != Some(key) {
            self.candidate.seq = Some(key);
            self.candidate.cursor.clear();
        }
    }

    /// Gives a waiting sequence its memory.
    fn start(&mut self, key: Key, weight: usize) {
        self.consider(key);
        self.admissions += 1;
        let id = SeqId(self.admissions);
        let cacheable = self.cacheable(key);
        let seq = &self.seqs[key];
        let tokens = known_tokens(seq, &self.groups[seq.group], &mut self.scratch);
        let cursor = &mut self.candidate.cursor;
        let created = self
            .blocks
            .create_from(id, cursor, tokens, cacheable, seq.terms);
        self.candidate.seq = None;
        self.held_up = None;
        self.dequeue(key);

        let cached = created.cached_tokens as u32;
        let seq = &mut self.seqs[key];
        seq.resident = Some(Resident {
            id,
            slot: created.slot,
        });
        (seq.computed, seq.committed, seq.reserved) = (cached, cached, cached);
        seq.preempted = false;
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
        self.waiting_choices -= weight;
        self.running_choices += weight;
        self.run(key);
    }

    /// Whether a sequence neither takes blocks from the prefix cache nor gives it any: what it
    /// reads is fixed then, a cached block may be at another width than its own would be, and
    /// others could keep its own from going to their place.
    pub(crate) fn is_private(&self, bound: Bound) -> bool {
        self.config.mode == Mode::Static && bound < Bound::NEVER
    }

    /// How many tokens of a sequence may come from the prefix cache: at least one is computed, to
    /// sample from, and prompt rows whose logits are still owed are.
    fn cacheable(&self, key: Key) -> usize {
        let seq = &self.seqs[key];
        if seq.terms.is_private {
            return 0;
        }
        let owed = seq.logprobs.then(|| self.groups[seq.group].rows_done);
        let most = match owed {
            Some(done) if done < seq.prompt_len => done.min(seq.known() - 1),
            _ => seq.known() - 1,
        };
        most as usize
    }

    /// Frames that the choices which share a sequence will take when they part: each but one
    /// copies the part of a block that the prompt ends in.
    pub(crate) fn parting_frames(&self, key: Key) -> u64 {
        let seq = &self.seqs[key];
        if !seq.is_shared() {
            return 0;
        }
        let open = u64::from(seq.prompt_len) % BLOCK_TOKENS as u64;
        self.frames_of(open) * u64::from(self.groups[seq.group].live - 1)
    }
}

/// The known tokens of a sequence in one piece, in `scratch` if they are not in one already.
fn known_tokens<'a>(seq: &Seq, group: &'a Group, scratch: &'a mut Vec<u32>) -> &'a [u32] {
    if seq.generated.is_empty() {
        return &group.prompt;
    }
    scratch.clear();
    scratch.extend_from_slice(&group.prompt);
    scratch.extend_from_slice(&seq.generated);
    scratch
}
