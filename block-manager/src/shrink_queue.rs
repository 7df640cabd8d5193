//! The blocks that can shrink, in the order of the [pressure policy](crate::pressure), kept up to
//! date as blocks change.

use std::collections::BTreeSet;

use crate::{BlockId, pressure::ShrinkRank};

/// Where a block is queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nothing more comes free, or a shrink is under way.
    Nowhere,
    /// Among the cached ones, by age.
    Cold(u64),
    /// Among those that sequences hold.
    Live(ShrinkRank),
}

/// The blocks that can shrink, the next one first.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(crate) cold: BTreeSet<(u64, BlockId)>,
    pub(crate) live: BTreeSet<ShrinkRank>,
    /// Frames of the blocks in `live`.
    pub(crate) live_frames: u64,
}

impl Queues {
    pub(crate) fn add(&mut self, id: BlockId, place: Place) {
        match place {
            Place::Nowhere => {}
            Place::Cold(age) => _ = self.cold.insert((age, id)),
            Place::Live(rank) => {
                self.live.insert(rank);
                self.live_frames += u64::from(rank.frames.0);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: BlockId, place: Place) {
        match place {
            Place::Nowhere => {}
            Place::Cold(age) => _ = self.cold.remove(&(age, id)),
            Place::Live(rank) => {
                self.live.remove(&rank);
                self.live_frames -= u64::from(rank.frames.0);
            }
        }
    }
}
