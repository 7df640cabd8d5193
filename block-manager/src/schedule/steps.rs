//! The ordered list of steps.

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

/// A format as far as this crate cares: a name that only the caller understands, and its nominal
/// code bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rung {
    /// The caller's name for the format.
    pub tag: u8,
    /// Code bits of most elements, without metadata: what a request's `min_kv_bits` is compared
    /// with.
    pub bits: u8,
}

/// One step: a page goes to a lower rung.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The page.
    pub page: Page,
    /// Where it goes.
    pub to: Rung,
}

/// Steps in the order in which they are taken. Each page starts at 16 bit and only ever goes down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    layers: u16,
    steps: Vec<Step>,
}

/// Why a list of steps is not a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ScheduleError {
    /// A page that the model does not have.
    #[error("step {step} names layer {layer}, but the model has {layers}")]
    Layer {
        /// Index of the step.
        step: usize,
        /// Layer named.
        layer: u16,
        /// Layers there are.
        layers: u16,
    },
    /// A step that does not go down.
    #[error(
        "step {step} takes layer {layer} {side:?} from {from} to {to} bits; a page never gains bits"
    )]
    Up {
        /// Index of the step.
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
    /// More positions than a block's record counts.
    #[error("{steps} steps are more than a schedule can have ({max})")]
    TooLong {
        /// Steps given.
        steps: usize,
        /// Most there can be.
        max: usize,
    },
}

impl Schedule {
    /// Steps a schedule can have: four chains of positions must fit a `u16`.
    pub const MAX_STEPS: usize = 16_000;

    /// Checks that every step goes down.
    ///
    /// # Errors
    /// Names the first step that does not fit.
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
            // Rungs of equal nominal bits (a share of channels boosted) may follow each other; the
            // same rung may not.
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

    /// The steps in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The steps that stay at or above `bits`, in order: the chain of that bound.
    pub fn chain(&self, bits: u8) -> impl Iterator<Item = Step> + '_ {
        // A page's first step below the bound ends that page's part, and no later one can come back
        // above it.
        self.steps
            .iter()
            .copied()
            .filter(move |s| s.to.bits >= bits)
    }

    /// Every nominal width a page can come to, highest first.
    pub fn widths(&self) -> Vec<u8> {
        let mut widths: Vec<u8> = self.steps.iter().map(|s| s.to.bits).collect();
        widths.sort_unstable_by(|a, b| b.cmp(a));
        widths.dedup();
        widths
    }
}
