//! The blocks that can shrink, in the order of the [pressure policy](crate::pressure), kept up to
//! date as blocks change.

use std::collections::BTreeSet;

use crate::{BlockId, pressure::ShrinkRank};

/// Where a block is queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queued {
    /// Nothing more comes free, or a shrink is under way.
    No,
    /// Among the cached ones, by age.
    Cached(u64),
    /// Among those that sequences hold.
    Live(ShrinkRank),
}

/// The blocks that can shrink, the next one first.
#[derive(Debug, Default)]
pub(crate) struct ShrinkQueues {
    pub(crate) cached: BTreeSet<(u64, BlockId)>,
    pub(crate) live: BTreeSet<ShrinkRank>,
    /// Frames of the blocks in `live`.
    pub(crate) live_frames: u64,
}

impl ShrinkQueues {
    pub(crate) fn add(&mut self, id: BlockId, queued: Queued) {
        match queued {
            Queued::No => {}
            Queued::Cached(age) => _ = self.cached.insert((age, id)),
            Queued::Live(rank) => {
                self.live.insert(rank);
                self.live_frames += u64::from(rank.held);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: BlockId, queued: Queued) {
        match queued {
            Queued::No => {}
            Queued::Cached(age) => _ = self.cached.remove(&(age, id)),
            Queued::Live(rank) => {
                self.live.remove(&rank);
                self.live_frames -= u64::from(rank.held);
            }
        }
    }
}
