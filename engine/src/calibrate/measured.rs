//! Method *measured*: the loss of each page at each format, one at a time.

use ebb_kernels::formats::{FormatId, ladder};
use ebb_kernels::kv::{KvGeometry, Side};

use super::sensitivities::formats;
use super::{Losses, LossesError, Sensitivities};
use crate::kv_spec::PageFormats;

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
        format!("{}={}", page_name(self.layer, self.side), self.format)
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

/// `layer7.k`.
pub fn page_name(layer: usize, side: Side) -> String {
    let side = match side {
        Side::K => "k",
        Side::V => "v",
    };
    format!("layer{layer}.{side}")
}

/// Everything that has to be measured: each rung below 8 bit for each page.
pub fn trials(geometry: KvGeometry) -> Vec<Trial> {
    let pages = (0..geometry.layers).flat_map(|layer| [(layer, Side::K), (layer, Side::V)]);
    let rungs = |side| ladder(side).filter(|f| !matches!(f, FormatId::F16 | FormatId::Int8));
    let all = pages.flat_map(|(layer, side)| {
        rungs(side)
            .filter(move |f| formats(geometry, side, &[]).contains(f))
            .map(move |format| Trial {
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

/// What the losses of all trials say, in nats a token.
///
/// # Errors
/// When a loss is missing.
pub fn sensitivities(geometry: KvGeometry, losses: &Losses) -> Result<Sensitivities, LossesError> {
    Sensitivities::new(geometry, &[], |layer, side, format| {
        let loss = |format| {
            let trial = Trial {
                layer,
                side,
                format,
            };
            losses.get(&trial.name())
        };
        match format {
            FormatId::Int8 => Ok(loss(FormatId::Int4)? * INT8_OF_INT4),
            _ => loss(format),
        }
    })
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
    fn a_missing_loss_is_named() {
        let mut losses = Losses::default();
        for trial in trials(TINY).iter().filter(|t| t.name() != "layer1.v=int2") {
            losses.set(&trial.name(), 1.0);
        }
        let error = sensitivities(TINY, &losses).unwrap_err();
        assert!(error.to_string().contains("layer1.v=int2"), "{error}");
        losses.set("layer1.v=int2", 2.0);
        let table = sensitivities(TINY, &losses).unwrap().table(Side::V);
        assert_eq!(table["int2"], [1.0, 2.0, 1.0, 1.0]);
        assert_eq!(table["int8"], [1.0 / 289.0; 4]);
        assert_eq!(table.len(), 3);
    }
}
