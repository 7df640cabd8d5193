//! Which block shrinks next: queues of those that can, kept up to date as blocks change.
//!
//! Cold blocks (only the cache keeps them) go first, the least recently used in front, as long as
//! evicting them would do, or no live one can shrink; else they are evicted as they are. Of the
//! live ones those of the highest class go first (the least urgent), among these the ones that take
//! the most frames (the least advanced), protected ones last, then the oldest.

use std::{cmp::Reverse, collections::BTreeSet};

use crate::BlockId;

/// How much memory is wanted, and how much may be rewritten for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pressure {
    /// Frames that the next steps could use.
    pub demand: u32,
    /// Of them, frames that the next step must find free: shrinks do not write to these.
    pub soon: u32,
    /// Shrinking begins when fewer frames than this would be left after `demand`.
    pub low: u32,
    /// It goes on until as many would be left. At least `low`.
    pub high: u32,
    /// Frames that sequences may hold whatever room there is: shrinking begins beyond, too, and
    /// goes on until they hold `high - low` fewer.
    pub live_max: u32,
    /// Bytes of the blocks that one step transcodes. A block that is larger is transcoded alone.
    pub bytes_max: u64,
    /// Whether blocks that only the prefix cache keeps shrink as well, where evicting them would
    /// do, and are not just evicted.
    pub cold: bool,
}

/// A live block's place in the order: what comes first shrinks first.
pub(crate) type LiveKey = (Reverse<i32>, Reverse<u16>, bool, u64, BlockId);

/// Where the planner finds a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nothing more comes free, or a shrink is under way.
    Nowhere,
    /// Among the cached, by age.
    Cold(u64),
    /// Among those that sequences hold.
    Live(LiveKey),
}

/// The blocks that can shrink, in order, and whether shrinking has begun.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(crate) cold: BTreeSet<(u64, BlockId)>,
    pub(crate) live: BTreeSet<LiveKey>,
    /// Frames of the blocks in `live`.
    pub(crate) live_frames: u64,
    pub(crate) cold_pressed: bool,
    pub(crate) live_pressed: bool,
    /// Live blocks hold more than they may.
    pub(crate) live_over: bool,
}

impl Queues {
    pub(crate) fn add(&mut self, id: BlockId, place: Place) {
        match place {
            Place::Nowhere => {}
            Place::Cold(age) => _ = self.cold.insert((age, id)),
            Place::Live(key) => {
                self.live.insert(key);
                self.live_frames += u64::from(key.1.0);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: BlockId, place: Place) {
        match place {
            Place::Nowhere => {}
            Place::Cold(age) => _ = self.cold.remove(&(age, id)),
            Place::Live(key) => {
                self.live.remove(&key);
                self.live_frames -= u64::from(key.1.0);
            }
        }
    }
}

/// The frames that each live block that can shrink would be left with if they gave up evenly
/// `wanted`. A block goes there at once: on the way there it would be rewritten several times, and
/// everybody would wait for it.
pub(crate) fn level(queues: &Queues, wanted: u64) -> u32 {
    let blocks = queues.live.len() as u64;
    let left = queues.live_frames.saturating_sub(wanted);
    left.checked_div(blocks).unwrap_or(0) as u32
}

impl Pressure {
    /// What has to come free where `frames` are left: below the low watermark, or below the high
    /// one if blocks `shrink` for it already, as much as is missing there; else nothing.
    pub(crate) fn short(&self, shrink: bool, frames: u64) -> u64 {
        let above = |mark: u32| u64::from(self.demand) + u64::from(mark);
        match shrink || frames < above(self.low) {
            true => above(self.high.max(self.low)).saturating_sub(frames),
            false => 0,
        }
    }

    /// What live blocks that hold `live` frames have to give for [`live_max`](Self::live_max), if
    /// they `shrink` for it already or begin.
    pub(crate) fn over(&self, shrink: bool, live: u64) -> u64 {
        let until = self
            .live_max
            .saturating_sub(self.high.saturating_sub(self.low));
        match shrink || live > u64::from(self.live_max) {
            true => live.saturating_sub(u64::from(until)),
            false => 0,
        }
    }
}
