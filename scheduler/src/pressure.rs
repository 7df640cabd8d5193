//! Memory pressure: who gives memory back when a sequence needs more than there is, and how.
//!
//! Everything that takes memory for running sequences goes through [`Scheduler::acquire`]; what to
//! do when the pool is short is the ordered list [`REMEDIES`]. Where blocks shrink,
//! [`crate::precision`] takes its place.

use ebb_block_manager::{SUB_BLOCK_TOKENS, Short};

use crate::batch::Batch;
use crate::scheduler::Scheduler;
use crate::slab::Key;
use crate::{FinishReason, Notice};

/// A way to get memory back.
#[derive(Clone, Copy, Debug)]
enum Remedy {
    /// Evict cached blocks that no sequence holds, least recently used first. The block manager
    /// does it whenever it grows a sequence: a pool is only short once these are gone.
    EvictCached,
    /// Wait for memory that was given back and that a step may still touch.
    AwaitRetiring,
    /// Take the memory of the sequence that is cheapest to compute again.
    Preempt,
}

/// Ways to get memory back, in the order in which they are tried.
const REMEDIES: [Remedy; 3] = [Remedy::EvictCached, Remedy::AwaitRetiring, Remedy::Preempt];

/// What a remedy did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relief {
    /// Nothing: try the next one.
    Nothing,
    /// Memory was given back: try again.
    Freed,
    /// Enough memory will be free when a step in flight retires.
    Coming,
    /// The sequence that asked gave up its own memory.
    Lost,
}

/// Outcome of asking for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    /// The sequence may write its tokens.
    Granted,
    /// Not in this step.
    Later,
    /// The sequence was the one to give way; it waits for admission now.
    Lost,
}

/// Context length at which attending to the context costs as much as the rest of a token's
/// computation does (about 30,000 for an 8B model). Only the order of victims depends on it.
const ATTENTION_PARITY_TOKENS: u64 = 32_768;

impl Scheduler {
    /// Makes sure that tokens `0..len` of a running sequence have memory of their own.
    pub(crate) fn acquire(&mut self, key: Key, len: u32, batch: &mut Batch) -> Acquired {
        let seq = &self.seqs[key];
        let Some(resident) = seq.resident else {
            return Acquired::Lost;
        };
        if len <= seq.reserved {
            return Acquired::Granted;
        }
        let len = len.next_multiple_of(SUB_BLOCK_TOKENS as u32);
        if self.config.mode.shrinks() {
            return self.acquire_or_wait(key, resident, len, batch);
        }
        loop {
            let Err(Short { missing }) = self.blocks.grow(resident.id, len as usize) else {
                self.seqs[key].reserved = len;
                return Acquired::Granted;
            };
            batch.pressed = true;
            match self.relieve(key, missing, batch) {
                Relief::Freed => {}
                Relief::Coming => return Acquired::Later,
                Relief::Lost => return Acquired::Lost,
                Relief::Nothing => {
                    // Only the most urgent sequence is left, and it was checked on arrival that it
                    // fits alone. Should that ever be wrong, one request fails and not the server.
                    debug_assert!(false, "{} does not fit alone", resident.id);
                    let (group, choice) = (self.seqs[key].group, self.seqs[key].choice);
                    self.end_choice(group, choice, FinishReason::Error);
                    return Acquired::Lost;
                }
            }
        }
    }

    fn relieve(&mut self, asking: Key, missing: u32, batch: &Batch) -> Relief {
        for remedy in REMEDIES {
            let relief = match remedy {
                Remedy::EvictCached => Relief::Nothing,
                Remedy::AwaitRetiring => self.await_retiring(missing, batch),
                Remedy::Preempt => self.preempt_cheapest(asking),
            };
            if relief != Relief::Nothing {
                return relief;
            }
        }
        Relief::Nothing
    }

    /// Freed and cached frames may have to wait for the steps in flight, or for copies that the
    /// step being planned makes.
    fn await_retiring(&self, missing: u32, batch: &Batch) -> Relief {
        let usage = self.blocks.usage();
        let held_by_nobody = usage.frames_total - usage.frames_live;
        let later = held_by_nobody.saturating_sub(usage.frames_held_back);
        let enough = later >= self.blocks.available() + missing
            && (!self.in_flight.is_empty() || self.has_work(batch));
        if enough {
            Relief::Coming
        } else {
            Relief::Nothing
        }
    }

    fn preempt_cheapest(&mut self, asking: Key) -> Relief {
        match self.victim() {
            Some(victim) => {
                self.preempt(victim);
                if victim == asking {
                    Relief::Lost
                } else {
                    Relief::Freed
                }
            }
            None if self.in_flight.is_empty() => Relief::Nothing,
            None => Relief::Coming,
        }
    }

    /// The sequence with the least work to compute again per frame freed, among those of the
    /// lowest priority; of equals the least urgent. Never the most urgent of all.
    pub(crate) fn victim(&self) -> Option<Key> {
        let candidates = self.running.get(1..)?;
        let lowest = candidates
            .iter()
            .map(|(_, key)| self.seqs[*key].priority)
            .max()?;
        let of_lowest = candidates
            .iter()
            .filter(|(_, key)| self.seqs[*key].priority == lowest);
        let costs = of_lowest.map(|(_, key)| (self.cost_of_preempting(*key), *key));
        costs
            .rev()
            .min_by(|(a, _), (b, _)| a.cmp(b))
            .map(|(_, key)| key)
    }

    fn cost_of_preempting(&self, key: Key) -> Cost {
        let seq = &self.seqs[key];
        let Some(resident) = seq.resident else {
            return Cost { work: 0, frames: 0 };
        };
        let frames = u64::from(self.blocks.releasable_frames(resident.id));
        // What others hold as well stays, and comes back as a prefix hit.
        let kept_frames = self
            .frames_of(u64::from(seq.reserved))
            .saturating_sub(frames);
        let kept_sub_blocks = kept_frames / self.frames_of(1);
        let computed = u64::from(seq.computed);
        let kept = (kept_sub_blocks * SUB_BLOCK_TOKENS as u64).min(computed);
        Cost {
            work: recompute_work(computed) - recompute_work(kept),
            frames,
        }
    }

    /// Takes a sequence's memory. Its tokens stay, those that steps in flight are sampling
    /// included; it waits in its old place in the order and will be computed again.
    pub(crate) fn preempt(&mut self, key: Key) {
        self.stop_running(key);
        let weight = self.weight(key);
        self.running_choices -= weight;
        self.waiting_choices += weight;
        self.held_up = None;
        let seq = &mut self.seqs[key];
        let resident = seq.resident.take().expect("a running sequence has memory");
        seq.bits = seq.bits.and(self.blocks.bits(resident.id));
        seq.settled = 0;
        self.counters.preemptions += 1;
        self.counters.preempted_tokens += u64::from(seq.computed);
        (seq.computed, seq.committed, seq.reserved) = (0, 0, 0);
        seq.preempted = true;
        self.notices.push(Notice::Preempted {
            request: seq.request,
            choice: seq.choice,
        });
        self.blocks.release(resident.id);
        self.enqueue(key);
    }
}

/// Work to compute the first `tokens` tokens, in units of a token's work without attention, times
/// `2 * ATTENTION_PARITY_TOKENS`.
fn recompute_work(tokens: u64) -> u64 {
    tokens * (2 * ATTENTION_PARITY_TOKENS + tokens)
}

/// Work per frame, compared without dividing. No frames is the dearest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cost {
    work: u64,
    frames: u64,
}

impl Cost {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (a, b) = (u128::from(self.work), u128::from(other.work));
        match (self.frames, other.frames) {
            (0, 0) => a.cmp(&b),
            (0, _) => std::cmp::Ordering::Greater,
            (_, 0) => std::cmp::Ordering::Less,
            (x, y) => (a * u128::from(y)).cmp(&(b * u128::from(x))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    #[test]
    fn cost_is_work_per_frame() {
        let cost = |work, frames| Cost { work, frames };
        assert_eq!(cost(10, 5).cmp(&cost(9, 3)), Ordering::Less);
        assert_eq!(cost(10, 5).cmp(&cost(20, 10)), Ordering::Equal);
        assert_eq!(cost(1, 0).cmp(&cost(1 << 60, 1)), Ordering::Greater);
        assert_eq!(
            cost(u64::MAX, 1).cmp(&cost(u64::MAX, u64::MAX)),
            Ordering::Greater
        );
    }

    #[test]
    fn long_contexts_cost_more_per_token() {
        assert!(recompute_work(20_000) > 2 * recompute_work(10_000));
        assert!(recompute_work(32) < 2 * recompute_work(16) + recompute_work(16) / 100);
    }
}
