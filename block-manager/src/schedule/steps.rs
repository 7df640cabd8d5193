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
pub struct Rung {
    /// The caller's name for the format.
    pub tag: u8,
    /// Code bits of most elements, without scales. A request's `min_kv_bits` is compared with this.
    pub bits: u8,
}

/// One level change: a page gets a format of fewer bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The page.
    pub page: Page,
    /// Its new format.
    pub to: Rung,
}

/// Level changes in the order in which they are taken. Each page starts at 16 bit and only shrinks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    layers: u16,
    steps: Vec<Step>,
}

/// Why a list of level changes is not a shrink order.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ScheduleError {
    /// A page that the model does not have.
    #[error("level change {step} names layer {layer}, but the model has {layers}")]
    Layer {
        /// Index of the change.
        step: usize,
        /// Its layer.
        layer: u16,
        /// Layers of the model.
        layers: u16,
    },
    /// A change that does not lower its page.
    #[error(
        "level change {step} takes layer {layer} {side:?} from {from} to {to} bits; \
         a page never gains bits"
    )]
    Up {
        /// Index of the change.
        step: usize,
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
    #[error("{steps} level changes are more than a shrink order can have ({max})")]
    TooLong {
        /// Changes given.
        steps: usize,
        /// The limit.
        max: usize,
    },
}

impl Schedule {
    /// Most level changes: the levels of four paths must fit in a `u16`.
    pub const MAX_STEPS: usize = 16_000;

    /// Checks that every change lowers its page.
    ///
    /// # Errors
    /// Names the first change that does not.
    pub fn new(layers: u16, steps: Vec<Step>) -> Result<Self, ScheduleError> {
        if steps.len() > Self::MAX_STEPS {
            return Err(ScheduleError::TooLong {
                steps: steps.len(),
                max: Self::MAX_STEPS,
            });
        }
        let mut at: FxHashMap<Page, Rung> = FxHashMap::default();
        for (index, step) in steps.iter().enumerate() {
            let Page { layer, side } = step.page;
            if layer >= layers {
                return Err(ScheduleError::Layer {
                    step: index,
                    layer,
                    layers,
                });
            }
            let before = at.insert(step.page, step.to);
            let from = before.map_or(16, |r| r.bits);
            // Formats of equal nominal bits may follow each other, such as with and without boosted
            // channels; the same format may not.
            if step.to.bits > from
                || before == Some(step.to)
                || (before.is_none() && step.to.bits >= 16)
            {
                return Err(ScheduleError::Up {
                    step: index,
                    layer,
                    side,
                    from,
                    to: step.to.bits,
                });
            }
        }
        Ok(Self { layers, steps })
    }

    /// Layers of the model.
    pub fn layers(&self) -> u16 {
        self.layers
    }

    /// The changes in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The changes that stay at or above `bits`, in order: the path of that bound.
    pub fn chain(&self, bits: u8) -> impl Iterator<Item = Step> + '_ {
        // After a page's first change below the bound, none of its later ones is above it.
        self.steps
            .iter()
            .copied()
            .filter(move |s| s.to.bits >= bits)
    }

    /// All nominal bits that a page can shrink to, highest first.
    pub fn widths(&self) -> Vec<u8> {
        let mut widths: Vec<u8> = self.steps.iter().map(|s| s.to.bits).collect();
        widths.sort_unstable_by(|a, b| b.cmp(a));
        widths.dedup();
        widths
    }
}
