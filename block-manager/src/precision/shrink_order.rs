//! The order in which pages shrink.

use rustc_hash::FxHashMap;
use thiserror::Error;

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageSide {
    /// Keys.
    K,
    /// Values.
    V,
}

/// Which page of a block: one layer, one side, all KV heads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Page {
    /// Layer.
    pub layer: u16,
    /// Side.
    pub side: PageSide,
}

/// The precision level of a page: its format, by a tag that only the caller understands, and its
/// nominal code bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageLevel {
    /// The caller's name for the format.
    pub tag: u8,
    /// Code bits of most elements, without scales. A request's `min_kv_bits` is compared with this.
    pub bits: u8,
}

/// One level change: a page gets a format of fewer bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LevelChange {
    /// The page.
    pub page: Page,
    /// Its new format.
    pub to: PageLevel,
}

/// Level changes in the order in which they are taken. Each page starts at 16 bit and only shrinks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShrinkOrder {
    layers: u16,
    changes: Vec<LevelChange>,
}

/// Why a list of level changes is not a shrink order.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ShrinkOrderError {
    /// A page that the model does not have.
    #[error("level change {change} names layer {layer}, but the model has {layers}")]
    Layer {
        /// Index of the change.
        change: usize,
        /// Its layer.
        layer: u16,
        /// Layers of the model.
        layers: u16,
    },
    /// A change that does not lower its page.
    #[error(
        "level change {change} takes layer {layer} {side:?} from {from} to {to} bits; \
         a page never gains bits"
    )]
    Up {
        /// Index of the change.
        change: usize,
        /// Layer.
        layer: u16,
        /// Side.
        side: PageSide,
        /// Bits before.
        from: u8,
        /// Bits after.
        to: u8,
    },
    /// More level changes than levels can be numbered.
    #[error("{changes} level changes are more than a shrink order can have ({max})")]
    TooLong {
        /// Changes given.
        changes: usize,
        /// The limit.
        max: usize,
    },
}

impl ShrinkOrder {
    /// Most level changes: the levels of four paths must fit in a `u16`.
    pub const MAX_CHANGES: usize = 16_000;

    /// Checks that every change lowers its page.
    ///
    /// # Errors
    /// Names the first change that does not.
    pub fn new(layers: u16, changes: Vec<LevelChange>) -> Result<Self, ShrinkOrderError> {
        if changes.len() > Self::MAX_CHANGES {
            return Err(ShrinkOrderError::TooLong {
                changes: changes.len(),
                max: Self::MAX_CHANGES,
            });
        }
        let mut at: FxHashMap<Page, PageLevel> = FxHashMap::default();
        for (index, change) in changes.iter().enumerate() {
            let Page { layer, side } = change.page;
            if layer >= layers {
                return Err(ShrinkOrderError::Layer {
                    change: index,
                    layer,
                    layers,
                });
            }
            let before = at.insert(change.page, change.to);
            let from = before.map_or(16, |r| r.bits);
            // Formats of equal nominal bits may follow each other, such as with and without boosted
            // channels; the same format may not.
            if change.to.bits > from
                || before == Some(change.to)
                || (before.is_none() && change.to.bits >= 16)
            {
                return Err(ShrinkOrderError::Up {
                    change: index,
                    layer,
                    side,
                    from,
                    to: change.to.bits,
                });
            }
        }
        Ok(Self { layers, changes })
    }

    /// Layers of the model.
    pub fn layers(&self) -> u16 {
        self.layers
    }

    /// The changes in order.
    pub fn changes(&self) -> &[LevelChange] {
        &self.changes
    }

    /// The changes that stay at or above `bits`, in order: the path of those bits.
    pub fn changes_within(&self, bits: u8) -> impl Iterator<Item = LevelChange> + '_ {
        // After a page's first change below `bits`, none of its later ones is above it.
        self.changes
            .iter()
            .copied()
            .filter(move |s| s.to.bits >= bits)
    }

    /// All nominal bits that a page can shrink to, highest first.
    pub fn page_bits(&self) -> Vec<u8> {
        let mut bits: Vec<u8> = self.changes.iter().map(|s| s.to.bits).collect();
        bits.sort_unstable_by(|a, b| b.cmp(a));
        bits.dedup();
        bits
    }
}
