//! [`Mode::Static`]: a prompt is computed in chunks at fixed positions, whose tokens read each
//! other at 16 bit. Everything before the chunk is read at its floor, but for the recent context
//! of KVmix's rule ([`recent_tokens`]), which stays at 16 bit.

use std::ops::Range;

use ebb_block_manager::BLOCK_TOKENS;

use crate::batch::Batch;
use crate::scheduler::Scheduler;
use crate::seq::Seq;
use crate::slab::Key;
use crate::{Mode, recent_tokens};

impl Scheduler {
    /// The tokens around the one a sequence is at that may read each other at 16 bit: the chunk of
    /// its prompt, or behind the prompt a block. It depends on the sequence alone, also when it is
    /// computed again.
    pub(crate) fn chunk(&self, seq: &Seq) -> Range<u32> {
        let block = BLOCK_TOKENS as u32;
        let (len, most) = if seq.computed < seq.prompt_len {
            (self.config.static_chunk, seq.prompt_len)
        } else {
            (block, u32::MAX)
        };
        let begin = seq.computed / len * len;
        begin..(begin + len).min(most)
    }

    /// The first block that lies wholly within the recent context of a sequence whose chunk begins
    /// at `begin`, at most the first that is not full then: what is sealed behind it is looked at
    /// when the next chunk begins. 0 where nothing is ever recent. It depends on the sequence
    /// alone.
    fn first_recent_block(&self, seq: &Seq, begin: u32) -> u32 {
        if self.config.recent_permille == 0 {
            return 0;
        }
        let at = if seq.computed < seq.prompt_len {
            begin
        } else {
            begin.max(seq.prompt_len)
        };
        let (share, chunk) = (self.config.recent_permille, self.config.static_chunk);
        let kept = recent_tokens(share, seq.prompt_len, chunk, at);
        let block = BLOCK_TOKENS as u32;
        (at - kept).div_ceil(block).min(begin / block)
    }

    /// Up to where a sequence needs memory to compute tokens up to `end`. A chunk is begun only
    /// with room for all of it: two chunks that are half done could wait for each other.
    pub(crate) fn reach(&self, key: Key, end: u32) -> u32 {
        let chunk = self.chunk(&self.seqs[key]);
        if self.policy.mode == Mode::Static && chunk.len() > BLOCK_TOKENS {
            chunk.end
        } else {
            end
        }
    }

    /// Whether the blocks before a sequence's chunk are at their floor, the recent ones at 16 bit,
    /// so that it may read them.
    /// If not, shrinks them.
    pub(crate) fn is_at_floor(&mut self, key: Key, batch: &mut Batch) -> bool {
        let seq = &self.seqs[key];
        let (Some(resident), Mode::Static) = (seq.resident, self.policy.mode) else {
            return true;
        };
        let begin = self.chunk(seq).start;
        let full = begin / BLOCK_TOKENS as u32;
        let recent = self.first_recent_block(seq, begin);
        if seq.at_floor == (full, recent) {
            return true;
        }
        // A block that a step in flight fills is not sealed yet. Should the step that ends a prompt
        // fail, its chunk reads itself again.
        let in_prompt = seq.computed < seq.prompt_len;
        let sealed = if in_prompt {
            begin
        } else {
            begin.max(seq.prompt_len)
        };
        if seq.committed < sealed {
            return false;
        }
        if self.config.recent_permille > 0 {
            self.blocks.keep_recent(resident.id, recent as usize);
        }
        let at_floor = self.blocks.shrink_to_floor(resident.id, &mut batch.shrinks);
        if at_floor {
            self.seqs[key].at_floor = (full, recent);
        } else {
            batch.awaits_floor = true;
        }
        at_floor
    }
}
