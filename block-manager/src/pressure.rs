//! The pressure policy: what happens, and in which order, when KV memory is short.
//!
//! Every decision is here, as arithmetic on numbers: which sequence is admitted, waits or is
//! preempted, which block is evicted or shrinks, and how far. [`BlockManager`](crate::BlockManager)
//! and the scheduler act on it.
//!
#![doc = include_str!("pressure.md")]

use std::cmp::Reverse;

use crate::{BlockId, PoolConfig, precision::MinBits};

pub use crate::mode::{Admission, Mode};
pub use crate::recompute::RecomputeCost;

/// Sequences in the queue whose prompts count as demand, at most.
pub const PROMPTS_AHEAD: usize = 64;
/// Steps whose prompts count as demand. What shrinks with the step being planned comes free when
/// that step has returned, and the next step is planned before it has.
pub const PROMPT_STEPS_AHEAD: u64 = 2;
/// Tokens ahead for which a decoding sequence's next sub-block counts as demand: the step being
/// planned, and the one after it.
pub const DECODE_TOKENS_AHEAD: u32 = 2;
/// At most 1/8 of the pool is left free for shrinks to write to.
const WRITE_SPACE_SHARE: u32 = 8;
/// The low watermark is room for at least this many shrinks.
const SHRINKS_AT_ONCE: u32 = 4;

/// The policy's limits, fixed when the scheduler starts. All counts are frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// What happens when memory is short.
    pub mode: Mode,
    /// What a request waits for, where blocks shrink.
    pub admission: Admission,
    /// Frames that an empty pool gives to sequences.
    pub capacity: u32,
    /// [`Mode::Static`]: frames of `capacity` that are kept for one chunk of a prompt at 16 bit.
    pub chunk_frames: u32,
    /// Tokens of one sequence that steps in flight compute, at most.
    pub tokens_ahead: u32,
    /// Memory at 16 bit that admission leaves to every running sequence.
    pub headroom_frames: u64,
    /// Share of the pool that promises may add up to, in percent.
    pub overcommit_percent: u32,
    /// When shrinking begins and ends.
    pub watermarks: Watermarks,
    /// Frames that sequences may hold before their blocks shrink though there is room.
    pub live_max: u32,
    /// Bytes of the blocks that one step rewrites.
    pub shrink_bytes_max: u64,
}

/// Free frames at which shrinking begins and ends, after the coming steps' demand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Below this blocks begin to shrink.
    pub low: u32,
    /// At this they stop.
    pub high: u32,
}

impl Watermarks {
    /// The watermarks of a pool of `capacity` frames, given as shares in thousandths. In a small
    /// pool, where a share is less than a few blocks, the low one is room for a few shrinks of
    /// `largest_shrink` frames.
    pub fn new(capacity: u32, largest_shrink: u32, permille: (u32, u32)) -> Self {
        let share = |permille: u32| (u64::from(capacity) * u64::from(permille) / 1000) as u32;
        let shrinks = (largest_shrink * SHRINKS_AT_ONCE).min(capacity / WRITE_SPACE_SHARE);
        let low = share(permille.0).max(shrinks);
        let high = low + share(permille.1 - permille.0);
        Self { low, high }
    }
}

/// Arrival and admission.
impl Policy {
    /// Frames that one choice takes at its longest, `tokens` tokens: at 16 bit, or with its blocks
    /// at their floor where blocks shrink, but for so many recent ones.
    pub fn frames_at_longest(
        &self,
        pool: &PoolConfig,
        tokens: u64,
        min_bits: MinBits,
        recent_blocks: u32,
    ) -> u64 {
        match self.mode.shrinks() {
            true => pool.floor_frames(tokens, min_bits, recent_blocks),
            false => pool.frames_at_16_bit(tokens, self.tokens_ahead),
        }
    }

    /// Frames that each of `choices` choices is promised. When they fork, each copies the block
    /// that the prompt ends in, which stays as it is for the others.
    pub fn promise(&self, pool: &PoolConfig, frames_at_longest: u64, choices: u32) -> u64 {
        frames_at_longest + u64::from(choices > 1) * u64::from(pool.block_frames())
    }

    /// Frames that an empty pool must have for a request: one choice must fit alone, since that is
    /// what the most urgent sequence can fall back to.
    pub fn frames_to_run_alone(&self, frames_at_longest: u64) -> u64 {
        frames_at_longest + u64::from(self.chunk_frames)
    }

    /// Whether a sequence is admitted only if it fits at 16 bit, by
    /// [`fits_at_16_bit`](Self::fits_at_16_bit). Where blocks shrink, one that runs alone needs no
    /// such room: it fits once its own blocks shrink, as was checked on arrival.
    pub fn needs_room_at_16_bit(&self, runs_alone: bool) -> bool {
        !self.mode.shrinks() || (self.admission == Admission::Queue && !runs_alone)
    }

    /// Whether every sequence, the new one included, can complete its prompt and then decode up to
    /// the headroom at 16 bit. One that runs alone has the whole pool.
    pub fn fits_at_16_bit(&self, needs: &PromptNeeds, runs_alone: bool, available: u32) -> bool {
        let others = needs.fork + needs.running_prompts + self.headroom_frames * needs.sequences;
        let others = if runs_alone { 0 } else { others };
        needs.prompt + others <= u64::from(available)
    }

    /// Frames that the running sequences may be promised. A sequence preempted by overcommit is
    /// readmitted only `without_overcommit`.
    pub fn promises_max(&self, without_overcommit: bool) -> u64 {
        let percent = match without_overcommit {
            true => self.overcommit_percent.min(100),
            false => self.overcommit_percent,
        };
        let promised = u64::from(self.capacity.saturating_sub(self.chunk_frames));
        promised * u64::from(percent) / 100
    }

    /// Whether a shortage among the running sequences also blocks the head of the queue. Where
    /// blocks shrink it is over in a step or two.
    pub fn shortage_blocks_queue(&self) -> bool {
        self.mode == Mode::PreemptOnly
    }
}

/// What the head of the queue waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockedBy {
    /// Memory for its prompt at 16 bit.
    Frames,
    /// Frames that are not promised to others. Only ends bring them.
    Promises,
}

/// Frames at 16 bit that admission counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PromptNeeds {
    /// Of the new sequence's prompt, without what the prefix cache has in use.
    pub prompt: u64,
    /// That its choices copy when they fork.
    pub fork: u64,
    /// That running sequences still take for their prompts.
    pub running_prompts: u64,
    /// Sequences that run or will, the new one included.
    pub sequences: u64,
}

/// What is done about a shortage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// The sequence waits: enough frames come free when a step returns.
    Wait,
    /// The [`victim`] is preempted.
    Preempt,
    /// The sequence gives up its own memory and is computed again.
    Restart,
    /// The request fails. It was checked on arrival that it fits alone, so this is a last resort
    /// that saves the server.
    Fail,
}

/// What a sequence that found too few frames could wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Frames that it needs.
    pub needed: u32,
    /// Frames that no sequence holds, whenever they come free.
    pub unheld: u32,
    /// Whether a step is in flight or about to be.
    pub step_returns: bool,
    /// Whether a step is in flight.
    pub is_in_flight: bool,
    /// Whether there is a [`victim`].
    pub has_victim: bool,
}

/// Memory for sequences that run.
impl Policy {
    /// Frames that sequences may take now, if `left_to_shrinks` of them are left free while blocks
    /// can shrink.
    pub fn takeable(&self, pool: Takeable, left_to_shrinks: u32) -> u64 {
        let available = u64::from(pool.available);
        if self.mode != Mode::Progressive || !pool.can_shrink {
            return available;
        }
        available.saturating_sub(u64::from(left_to_shrinks.saturating_sub(pool.coming)))
    }

    /// Frames that prompts leave to shrinks: the low watermark, or as many as the prompts of the
    /// coming steps will take, if the pool has so many to spare. A block that is halved is written
    /// before it comes free, and that is two steps later. To free what a step of prompts takes,
    /// about as much has to be free already; otherwise steps of prompts and steps that only wait
    /// for memory take turns.
    pub fn left_by_prompts(&self, prompt_frames: u32) -> u32 {
        let most = self.capacity / WRITE_SPACE_SHARE;
        self.watermarks.low.max(prompt_frames.min(most))
    }

    /// [`Mode::PreemptOnly`]: what is done for a sequence that found too few frames, after cached
    /// blocks have been evicted.
    pub fn remedy(shortage: Shortage) -> Remedy {
        if shortage.unheld >= shortage.needed && shortage.step_returns {
            Remedy::Wait
        } else if shortage.has_victim {
            Remedy::Preempt
        } else if shortage.is_in_flight {
            Remedy::Wait
        } else {
            Remedy::Fail
        }
    }

    /// Where blocks shrink: what is done when no sequence can go on, no step is in flight and
    /// nothing shrinks. Without a [`victim`] one sequence is left. It is computed again, since
    /// blocks that it shared with choices that have ended may keep it from fitting. If it is stuck
    /// again without a new token, its blocks cannot be encoded, and it fails.
    pub fn remedy_when_stuck(has_victim: bool, has_restarted: bool) -> Remedy {
        match (has_victim, has_restarted) {
            (true, _) => Remedy::Preempt,
            (false, false) => Remedy::Restart,
            (false, true) => Remedy::Fail,
        }
    }
}

/// What the pool can give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Takeable {
    /// Frames that are free or evictable now.
    pub available: u32,
    /// Frames that come free when steps return.
    pub coming: u32,
    /// Whether a block in use can shrink.
    pub can_shrink: bool,
}

/// The sequence to preempt: of those with the lowest priority (the highest number) the one with the
/// least work to compute again per frame freed, of equals the least urgent. `candidates` are the
/// running sequences without the most urgent one, most urgent first.
pub fn victim<K: Copy>(
    candidates: impl DoubleEndedIterator<Item = (i32, K)> + Clone,
    cost: impl Fn(K) -> RecomputeCost,
) -> Option<K> {
    let lowest = candidates.clone().map(|(priority, _)| priority).max()?;
    let of_lowest = candidates.filter(|(priority, _)| *priority == lowest);
    let costs = of_lowest.rev().map(|(_, key)| (cost(key), key));
    costs.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, key)| key)
}

/// Frames that the coming steps could use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// That sequences asked for and did not get in this step.
    pub unmet: u64,
    /// That decoding sequences take in the next steps.
    pub decodes: u64,
    /// That prompts take in the next steps.
    pub prompts: u64,
}

/// Shrinking in [`Mode::Progressive`].
impl Policy {
    /// What a step's shrinks are to achieve. `left_by_prompts` is
    /// [`left_by_prompts`](Self::left_by_prompts) of this step.
    pub fn pressure(&self, demand: Demand, left_by_prompts: u32) -> Pressure {
        let Watermarks { low, high } = self.watermarks;
        Pressure {
            demand: saturate(demand.unmet + demand.decodes + demand.prompts),
            decodes: saturate(demand.decodes),
            low: left_by_prompts,
            high: high + (left_by_prompts - low),
            live_max: self.live_max,
            bytes_max: self.shrink_bytes_max,
            shrinks_cached: self.admission == Admission::Degrade,
        }
    }
}

fn saturate(frames: u64) -> u32 {
    u32::try_from(frames).unwrap_or(u32::MAX)
}

/// How much memory is wanted, and how much may be rewritten for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pressure {
    /// Frames that the next steps could use.
    pub demand: u32,
    /// Of them, frames that the next step must find free: shrinks do not write to these.
    pub decodes: u32,
    /// Shrinking begins when fewer frames than this would be left after `demand`.
    pub low: u32,
    /// It goes on until this many would be left. At least `low`.
    pub high: u32,
    /// Frames that sequences may hold though others are free. Shrinking also begins beyond this,
    /// and goes on until they hold `high - low` fewer.
    pub live_max: u32,
    /// Bytes of the blocks that one step rewrites. A larger block shrinks alone.
    pub bytes_max: u64,
    /// Whether cached blocks shrink where evicting them would be enough. If not, they are only
    /// evicted.
    pub shrinks_cached: bool,
}

impl Pressure {
    /// Frames that have to come free if `frames` are left: up to the high watermark, once they are
    /// below the low one or shrinking `has_begun`.
    fn deficit(&self, has_begun: bool, frames: u64) -> u64 {
        let above = |mark: u32| u64::from(self.demand) + u64::from(mark);
        match has_begun || frames < above(self.low) {
            true => above(self.high.max(self.low)).saturating_sub(frames),
            false => 0,
        }
    }

    /// Frames that live blocks have to give up for [`live_max`](Self::live_max) if they have
    /// `live`, once they have too many or shrinking for it `has_begun`.
    fn excess(&self, has_begun: bool, live: u64) -> u64 {
        let gap = self.high.saturating_sub(self.low);
        let until = self.live_max.saturating_sub(gap);
        match has_begun || live > u64::from(self.live_max) {
            true => live.saturating_sub(u64::from(until)),
            false => 0,
        }
    }

    /// Frames that a step's shrinks may be written to: those that no sequence takes soon.
    pub(crate) fn writable(&self, free: u32, evictable: u32) -> u32 {
        (free + evictable).saturating_sub(self.decodes)
    }

    /// The same for shrinks of cached blocks, which evict nothing. The `reserve` is for shrinks
    /// alone.
    pub(crate) fn writable_for_cached(&self, free: u32, evictable: u32, reserve: u32) -> u32 {
        let writable = self.writable(free, evictable).min(free);
        writable.max(free.min(reserve))
    }

    /// Whether a step that rewrites `issued` bytes may rewrite a block of `bytes` as well.
    pub(crate) fn allows_bytes(&self, issued: u64, bytes: u64) -> bool {
        issued == 0 || issued + bytes <= self.bytes_max
    }
}

/// Which shrinking has begun. It then goes on up to the high watermark.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begun {
    cached: bool,
    live: bool,
    /// Of live blocks because they hold more than they may.
    live_excess: bool,
}

/// The pool's frames once the steps in flight, and the shrinks issued so far, are done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    /// Frames of the pool.
    pub(crate) total: u64,
    /// Of them, frames that only shrinks may use.
    pub(crate) reserve: u64,
    /// Frames without an owner.
    pub(crate) unowned: u64,
    /// Frames that no live block needs: these, those of cached blocks, and hidden ones.
    pub(crate) not_live: u64,
}

impl Begun {
    /// Looks at the pool before anything shrinks.
    pub(crate) fn look(&mut self, pressure: &Pressure, outlook: &Outlook) {
        self.live = pressure.deficit(self.live, outlook.left(outlook.not_live)) > 0;
        self.look_at_cached(pressure, outlook);
    }

    /// Looks again after a cached block has shrunk.
    pub(crate) fn look_at_cached(&mut self, pressure: &Pressure, outlook: &Outlook) {
        self.cached = pressure.deficit(self.cached, outlook.left(outlook.unowned)) > 0;
    }

    /// Whether the next cached block shrinks. None does if evicting all of them would not be enough
    /// and live ones can shrink: cached ones are then evicted without being rewritten.
    pub(crate) fn cached_shrink(&self, pressure: &Pressure, live_can_shrink: bool) -> bool {
        pressure.shrinks_cached && self.cached && !(self.live && live_can_shrink)
    }

    /// Frames that live blocks have to give now.
    pub(crate) fn wanted_from_live(&mut self, pressure: &Pressure, outlook: &Outlook) -> u64 {
        let deficit = pressure.deficit(self.live, outlook.left(outlook.not_live));
        let excess = pressure.excess(self.live_excess, outlook.total - outlook.not_live);
        (self.live, self.live_excess) = (deficit > 0, excess > 0);
        deficit.max(excess)
    }
}

impl Outlook {
    fn left(&self, frames: u64) -> u64 {
        frames.saturating_sub(self.reserve)
    }
}

/// A live block's rank: the lowest shrinks first. Fields are compared in this order: the lowest
/// priority (the highest number), the most frames at its level (the block has shrunk least),
/// unprotected before protected, the oldest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ShrinkRank {
    pub(crate) priority: Reverse<i32>,
    pub(crate) frames: Reverse<u16>,
    pub(crate) is_protected: bool,
    pub(crate) sealed_at: u64,
    pub(crate) block: BlockId,
    /// Frames that it has, without hidden ones.
    pub(crate) held: u16,
}

/// Frames that each of `blocks` live blocks would be left with if they gave up `wanted` of their
/// `frames` evenly. A block shrinks to that size at once. In several shrinks it would be rewritten
/// several times, and every sequence would wait for that.
pub(crate) fn even_share(blocks: u64, frames: u64, wanted: u64) -> u32 {
    let left = frames.saturating_sub(wanted);
    left.checked_div(blocks).unwrap_or(0) as u32
}
