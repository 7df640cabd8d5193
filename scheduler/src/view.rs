//! What an observer sees of the sequences.

use ebb_block_manager::{SeqBits, SeqId};

use crate::RequestId;
use crate::scheduler::Scheduler;
use crate::slab::Key;

/// What a sequence does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It is in the queue and has not run yet.
    Waiting,
    /// It is in the queue because its memory was taken.
    Preempted,
    /// Its prompt is being computed, or what it lost by a preemption.
    Prefill,
    /// It generates.
    Decode,
}

/// A sequence as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceView {
    /// The request that it belongs to.
    pub request: RequestId,
    /// Its choice; of a prompt that choices share, the first active one.
    pub choice: u32,
    /// What it does.
    pub phase: Phase,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens in the KV cache.
    pub tokens: u32,
    /// Most tokens that it will have in the KV cache.
    pub tokens_max: u32,
    /// Bits at which it has read its context so far.
    pub bits: SeqBits,
    /// Its name in the block manager, while it runs.
    pub kv: Option<SeqId>,
}

impl Scheduler {
    /// The running sequences, most urgent first.
    pub fn running(&self) -> impl ExactSizeIterator<Item = SequenceView> + '_ {
        self.running.iter().map(|&(_, key)| self.view(key))
    }

    /// The waiting sequences, most urgent first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = SequenceView> + '_ {
        self.waiting.values().map(|&key| self.view(key))
    }

    fn view(&self, key: Key) -> SequenceView {
        let seq = &self.seqs[key];
        let phase = match seq.resident {
            None if seq.preempted => Phase::Preempted,
            None => Phase::Waiting,
            Some(_) if seq.committed < seq.prompt_len || seq.remaining() > 1 => Phase::Prefill,
            Some(_) => Phase::Decode,
        };
        SequenceView {
            request: seq.request,
            choice: seq.choice,
            phase,
            prompt_tokens: seq.prompt_len,
            tokens: seq.committed,
            tokens_max: seq.tokens_max(),
            bits: self.seq_bits(key),
            kv: seq.resident.map(|resident| resident.id),
        }
    }
}
