//! What each page of a model is worth: losses by layer, side and format, and the shrink schedule that follows from them.
//!
//! Method *measured*: the mean KL divergence from the 16-bit run when one page alone stands at a format, teacher-forced
//! over text through the paged cache that serves, scored on the second half of each window. Losses are taken to add up.

mod hull;
mod losses;

use ebb_kernels::formats::{FormatId, RecordShape, ladder};
use ebb_kernels::kv::{KvGeometry, Side};

use crate::kv_plan::{Profile, ProfileStep};
use crate::kv_spec::PageFormats;

pub use hull::{Choice, PricedStep, hull, order};
pub use losses::{Losses, LossesError};

/// A page at a format, all others at 16 bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trial {
    /// Layer.
    pub layer: usize,
    /// Side.
    pub side: Side,
    /// Format of that page.
    pub format: FormatId,
}

impl Trial {
    /// `layer7.k=int4`, as a KV specification has it.
    pub fn name(&self) -> String {
        let side = match self.side {
            Side::K => "k",
            Side::V => "v",
        };
        format!("layer{}.{side}={}", self.layer, self.format)
    }

    /// The formats of all pages; protected blocks stay at 16 bit.
    pub fn formats(&self, geometry: KvGeometry) -> PageFormats {
        let whole = vec![FormatId::F16; geometry.layers * 2];
        let mut sealed = whole.clone();
        sealed[self.layer * 2 + self.side as usize] = self.format;
        PageFormats {
            sealed,
            protected: whole,
        }
    }
}

/// Everything that has to be measured: each rung below 8 bit for each page.
pub fn trials(geometry: KvGeometry) -> Vec<Trial> {
    let pages = (0..geometry.layers).flat_map(|layer| [(layer, Side::K), (layer, Side::V)]);
    let rungs = |side| ladder(side).filter(|f| !matches!(f, FormatId::F16 | FormatId::Int8));
    let all = pages.flat_map(|(layer, side)| {
        rungs(side).map(move |format| Trial {
            layer,
            side,
            format,
        })
    });
    all.collect()
}

/// Step of int4 over that of int8, squared: quantisation error is uniform in a step, and KL is quadratic in small errors.
/// Measured directly, 8-bit losses drown in rounding.
const INT8_OF_INT4: f64 = 1.0 / (17.0 * 17.0);

/// The schedule that the losses of all trials give, as a profile of the model.
///
/// # Errors
/// When a loss is missing.
pub fn profile(
    model: &str,
    geometry: KvGeometry,
    losses: &Losses,
    rotate_v: bool,
) -> Result<Profile, LossesError> {
    let mut pages = Vec::new();
    for page in 0..geometry.layers * 2 {
        let (layer, side) = (page / 2, Side::of_page(page));
        let loss = |format| {
            losses.get(Trial {
                layer,
                side,
                format,
            })
        };
        let mut choices = Vec::new();
        for format in ladder(side) {
            let shape = RecordShape {
                side,
                head_dim: geometry.head_dim,
            };
            let Ok(bytes) = format.record_bytes(shape) else {
                continue;
            };
            choices.push(Choice {
                format,
                bytes: bytes as u64,
                loss: match format {
                    FormatId::F16 => 0.0,
                    FormatId::Int8 => loss(FormatId::Int4)? * INT8_OF_INT4,
                    _ => loss(format)?,
                },
            });
        }
        pages.push(choices);
    }
    let steps = order(&pages).into_iter().map(|step| {
        let side = match Side::of_page(step.page) {
            Side::K => "k",
            Side::V => "v",
        };
        ProfileStep {
            page: format!("layer{}.{side}", step.page / 2),
            to: step.to.name().to_owned(),
            loss: Some(step.loss),
        }
    });
    Ok(Profile::new(model, geometry, rotate_v, steps.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use FormatId as F;

    const TINY: KvGeometry = KvGeometry {
        layers: 4,
        kv_heads: 2,
        head_dim: 64,
    };

    fn losses(of: impl Fn(Trial) -> f64) -> Losses {
        let mut losses = Losses::default();
        for trial in trials(TINY) {
            losses.set(trial, of(trial));
        }
        losses
    }

    #[test]
    fn every_rung_of_every_page_is_tried() {
        let all = trials(TINY);
        assert_eq!(all.len(), 4 * (4 + 2));
        assert_eq!(all[0].name(), "layer0.k=int4");
        let formats = all[1].formats(TINY);
        assert_eq!(formats.sealed[..2], [F::Kitty25, F::F16]);
        assert_eq!(formats.protected, [F::F16; 8]);
    }

    #[test]
    fn the_page_that_matters_most_comes_down_last() {
        let steps = |losses: &Losses| {
            let profile = profile("tiny", TINY, losses, false).unwrap();
            let formats = profile.steps(TINY, None).unwrap();
            (profile, formats.len())
        };
        let bits = |f: F| match f {
            F::Int4 => 1.0,
            F::Kitty25 => 10.0,
            F::Kitty12 => 15.0,
            _ => 20.0,
        };
        // Layer 1's keys are a hundred times as dear.
        let dear = losses(|t| {
            bits(t.format)
                * if (t.layer, t.side) == (1, Side::K) {
                    100.0
                } else {
                    1.0
                }
        });
        let (profile, _) = steps(&dear);
        let last = profile.schedule().last().unwrap();
        assert_eq!(last.page, "layer1.k");
        // Everything is at 8 bit before the cheap pages are at their ends, and the dear one stays there longest.
        let at = |page: &str, to: &str| {
            profile
                .schedule()
                .iter()
                .position(|s| s.page == page && s.to == to)
        };
        assert!(at("layer1.k", "int8") < at("layer0.v", "int2"));
        assert!(at("layer1.k", "int4") > at("layer0.v", "int2"));
    }

    #[test]
    fn a_missing_loss_is_named() {
        let mut some = losses(|_| 1.0);
        some.remove(Trial {
            layer: 1,
            side: Side::V,
            format: F::Int2,
        });
        let error = profile("tiny", TINY, &some, false).unwrap_err();
        assert!(error.to_string().contains("layer1.v=int2"), "{error}");
    }
}
