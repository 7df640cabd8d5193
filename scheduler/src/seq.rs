//! A sequence: a choice of a request, or the prompt that its choices still share.

use ebb_block_manager::{SeqBits, SeqId, SeqOptions, Slot};

use crate::slab::Key;
use crate::states::StateMarks;
use crate::urgency::Urgency;
use crate::{RequestId, SAMPLED_LATER};

/// A sequence. It outlives preemptions: each admission gives it a new [`SeqId`] in the block
/// manager.
///
/// Tokens `0..committed` are in the KV cache for certain, `committed..computed` are being written
/// by steps in flight, `computed..` are to be planned. Token ids are known up to `known()`;
/// `pending` more are being sampled.
#[derive(Debug)]
pub(crate) struct Seq {
    pub(crate) group: Key,
    pub(crate) request: RequestId,
    /// Its choice; of a leader, the first active one.
    pub(crate) choice: u32,
    pub(crate) urgency: Urgency,
    pub(crate) priority: i32,
    pub(crate) prompt_len: u32,
    pub(crate) max_tokens: u32,
    /// Tokens to sample when the prompt ends: n while n > 1 choices share the sequence, else 1.
    pub(crate) sharing: u32,
    /// Whether logits of the prompt are wanted.
    pub(crate) logprobs: bool,
    pub(crate) generated: Vec<u32>,

    /// `Some` while it runs.
    pub(crate) resident: Option<Resident>,
    pub(crate) computed: u32,
    pub(crate) committed: u32,
    /// Tokens `0..reserved` have memory that no other sequence writes; 0 if the block manager must
    /// be asked.
    pub(crate) reserved: u32,
    pub(crate) pending: u32,
    /// Slices in steps in flight, including void ones.
    pub(crate) in_flight: u32,
    /// Rises when uncommitted tokens are taken back: slices planned before that are void.
    pub(crate) epoch: u32,
    pub(crate) failures: u32,
    /// Whether it has given its slot to a more urgent one before.
    pub(crate) has_yielded: bool,
    /// Whether it was preempted and waits to be readmitted.
    pub(crate) preempted: bool,
    /// What it asks of the pool.
    pub(crate) options: SeqOptions,
    /// Frames that each choice of it is promised, where blocks shrink.
    pub(crate) promised_frames: u64,
    /// Bits at which it read its context before preemptions.
    pub(crate) bits: SeqBits,
    /// [`Mode::Static`](crate::Mode::Static): the full blocks at the start and the first of them in
    /// the recent context, for which all others are known to be at their floor.
    pub(crate) at_floor: (u32, u32),
    /// What is to be kept of its states.
    pub(crate) states: StateMarks,
    /// Tokens it had when it last gave up its memory because it was stuck alone; 0: never.
    pub(crate) restarted_at: u32,
}

/// A running sequence's names in the block manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resident {
    pub(crate) id: SeqId,
    pub(crate) slot: Slot,
}

impl Seq {
    /// Tokens whose ids are known.
    pub(crate) fn known(&self) -> u32 {
        self.prompt_len + self.generated.len() as u32
    }

    /// Most tokens whose KV it will have.
    pub(crate) fn tokens_max(&self) -> u32 {
        self.prompt_len + self.max_tokens.saturating_sub(1)
    }

    /// Whether more than one choice shares it.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing > 1
    }

    /// Tokens to compute before the next one has to be sampled; 0: nothing to plan now.
    pub(crate) fn remaining(&self) -> u32 {
        if self.is_shared() {
            // The choices fork when the prompt's last token has been sampled from.
            return self.prompt_len - self.computed;
        }
        let sampled = self.generated.len() as u32 + self.pending;
        if sampled >= self.max_tokens && self.max_tokens > 0 {
            return 0;
        }
        self.known() + self.pending - self.computed
    }

    /// Whether it only has its newest token to compute.
    pub(crate) fn is_decoding(&self) -> bool {
        self.remaining() == 1 && self.computed >= self.prompt_len
    }

    /// Takes back what is computed and not committed: slices planned until now are void.
    pub(crate) fn undo_uncommitted(&mut self) {
        self.epoch += 1;
        self.pending = 0;
        self.computed = self.committed;
    }

    /// Tokens to sample once everything is computed.
    pub(crate) fn samples_at_end(&self) -> u32 {
        if self.max_tokens == 0 {
            0
        } else {
            self.sharing
        }
    }

    /// Appends the ids of tokens `computed .. computed + len` to `out`.
    pub(crate) fn write_tokens(&self, prompt: &[u32], len: u32, out: &mut Vec<u32>) {
        let (from, to) = (self.computed as usize, (self.computed + len) as usize);
        let split = prompt.len();
        if from < split {
            out.extend_from_slice(&prompt[from..to.min(split)]);
        }
        if to > split {
            let known = self.generated.len();
            let (a, b) = (from.max(split) - split, to - split);
            out.extend_from_slice(&self.generated[a.min(known)..b.min(known)]);
            out.resize(out.len() + b.saturating_sub(a.max(known)), SAMPLED_LATER);
        }
    }
}
