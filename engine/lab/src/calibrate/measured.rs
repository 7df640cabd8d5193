//! Method *measured*: the loss of each page at each format, one at a time.

use ebb_kernels::formats::FormatId;
use ebb_kernels::kv::{KvGeometry, Side};
use ebb_serving::kv_pages::{Guards, PageFormats};

use super::sensitivities::formats;
use super::{FormatChoices, Losses, LossesError, Sensitivities};

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
            guards: Guards::usual(geometry.layers),
            max_length: None,
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

fn pages(geometry: KvGeometry) -> impl Iterator<Item = (usize, Side)> {
    (0..geometry.layers).flat_map(|layer| [(layer, Side::K), (layer, Side::V)])
}

/// Everything that has to be measured: each format below 8 bit for each page, and 4 bit, which 8
/// bit follows from.
pub fn trials(geometry: KvGeometry, choices: &FormatChoices) -> Vec<Trial> {
    let all = pages(geometry).flat_map(|(layer, side)| {
        let mut all = formats(geometry, side, choices, &[FormatId::Int4]);
        all.retain(|f| !matches!(f, FormatId::F16 | FormatId::Int8));
        all.into_iter().map(move |format| Trial {
            layer,
            side,
            format,
        })
    });
    all.collect()
}

/// What has to be measured besides where activations are rounded to bf16: each page at 8 bit. That
/// a page differs at all, however little, makes the layers behind it round differently, which moves
/// the logits as much as some pages' loss does. At 8 bit the page's own loss is far below that, so
/// what is measured is the rounding.
pub fn rounding_trials(geometry: KvGeometry) -> Vec<Trial> {
    let format = FormatId::Int8;
    let eight = FormatChoices::default();
    let has = |&(_, side): &(usize, Side)| formats(geometry, side, &eight, &[]).contains(&format);
    let of = |(layer, side)| Trial {
        layer,
        side,
        format,
    };
    pages(geometry).filter(has).map(of).collect()
}

/// Step of int4 over that of int8, squared: quantisation error is uniform in a step, and KL is
/// quadratic in small errors. Measured directly, 8-bit losses drown in rounding.
const INT8_OF_INT4: f64 = 1.0 / (17.0 * 17.0);

/// What the losses of all trials say, in nats a token. Where a page's loss at 8 bit was measured,
/// it is one part rounding, which is in every other loss of the page as well (independent errors
/// add in KL as their squares do) and is taken away from them, and one part int4's loss over 17²; a
/// loss below the rounding counts as none.
///
/// # Errors
/// When a loss is missing.
pub fn sensitivities(
    geometry: KvGeometry,
    choices: &FormatChoices,
    losses: &Losses,
) -> Result<Sensitivities, LossesError> {
    Sensitivities::new(geometry, choices, &[], |layer, side, format| {
        let measured = |format| {
            let trial = Trial {
                layer,
                side,
                format,
            };
            losses.get(&trial.name())
        };
        let eight = measured(FormatId::Int8).ok();
        let of_int4 = |int4: f64| match eight {
            Some(eight) => ((int4 - eight) / (1.0 - INT8_OF_INT4)).max(0.0),
            None => int4,
        };
        match format {
            FormatId::Int8 => Ok(of_int4(measured(FormatId::Int4)?) * INT8_OF_INT4),
            FormatId::Int4 => Ok(of_int4(measured(FormatId::Int4)?)),
            _ => match eight {
                Some(eight) => {
                    let int4 = of_int4(measured(FormatId::Int4)?);
                    let rounding = (eight - int4 * INT8_OF_INT4).max(0.0);
                    Ok((measured(format)? - rounding).max(0.0))
                }
                None => measured(format),
            },
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
        windowed: ebb_kernels::kv::WindowedLayers::NONE,
    };

    #[test]
    fn every_rung_of_every_page_is_tried() {
        let all = trials(TINY, &FormatChoices::default());
        assert_eq!(all.len(), 4 * (4 + 2));
        assert_eq!(all[0].name(), "layer0.k=int4");
        let formats = all[1].formats(TINY);
        assert_eq!(formats.sealed[..2], [F::Kitty25c, F::F16]);
        assert_eq!(formats.protected, [F::F16; 8]);
    }

    #[test]
    fn rounding_is_taken_away_where_it_was_measured() {
        assert_eq!(rounding_trials(TINY).len(), 8);
        let mut losses = Losses::default();
        // Errors of rounding and of quantising add up.
        let (rounding, int4) = (3e-4, 5e-4);
        let of = |format: F| match format {
            F::Int8 => int4 / 289.0,
            F::Int4 => int4,
            F::Int2c => 2e-2,
            _ => 1e-3,
        };
        for trial in trials(TINY, &FormatChoices::default())
            .iter()
            .chain(&rounding_trials(TINY))
        {
            losses.set(&trial.name(), rounding + of(trial.format));
        }
        // A page that quantising changes less than rounding does, and by chance less than that.
        losses.set("layer2.v=int4", 2.9e-4);
        losses.set("layer2.v=int8", 3e-4);
        let table = sensitivities(TINY, &FormatChoices::default(), &losses).unwrap();
        let (k, v) = (table.table(Side::K), table.table(Side::V));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, expected {b}");
        for format in [F::Int8, F::Int4, F::Kitty25c, F::Kitty12c, F::Int2c] {
            near(k[format.name()][1], of(format));
        }
        near(v["int2c"][0], of(F::Int2c));
        assert_eq!([v["int4"][2], v["int8"][2]], [0.0, 0.0]);
        near(v["int2c"][2], of(F::Int2c));
    }

    #[test]
    fn a_missing_loss_is_named() {
        let mut losses = Losses::default();
        for trial in trials(TINY, &FormatChoices::default())
            .iter()
            .filter(|t| t.name() != "layer1.v=int2c")
        {
            losses.set(&trial.name(), 1.0);
        }
        let error = sensitivities(TINY, &FormatChoices::default(), &losses).unwrap_err();
        assert!(error.to_string().contains("layer1.v=int2c"), "{error}");
        losses.set("layer1.v=int2c", 2.0);
        let table = sensitivities(TINY, &FormatChoices::default(), &losses)
            .unwrap()
            .table(Side::V);
        assert_eq!(table["int2c"], [1.0, 2.0, 1.0, 1.0]);
        assert_eq!(table["int8"], [1.0 / 289.0; 4]);
        assert_eq!(table.len(), 3);
    }
}
