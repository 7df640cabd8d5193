//! Whether a profile agrees with itself, and with a model.

use ebb_kernels::formats::FormatId;
use ebb_kernels::kv::{KvGeometry, Side};
use ebb_models::model::{Difference, Identity};

use super::{OtherModel, Profile, ProfileError};

/// The greatest of KVmix's shares. With more, most of a long context would count as recent.
const RECENT_RATIO_MAX: f64 = 0.9;

impl Profile {
    /// Whether it was made for this very model.
    ///
    /// # Errors
    /// [`ProfileError::Model`] with what differs.
    pub fn check_model(&self, served: &Identity) -> Result<(), ProfileError> {
        match self.model.differs_from(served) {
            None => Ok(()),
            Some(Difference {
                what,
                expected,
                found,
            }) => Err(ProfileError::Model(Box::new(OtherModel {
                made_for: self.model.name.clone(),
                served: served.name.clone(),
                what,
                found,
                expected,
            }))),
        }
    }

    /// The shape it says it is for.
    pub fn geometry(&self) -> KvGeometry {
        KvGeometry {
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            windowed: ebb_kernels::kv::WindowedLayers::NONE,
        }
    }

    /// Formats of the floors, `[layer * 2 + side]`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn floor_formats(&self) -> Result<Vec<FormatId>, String> {
        let mut formats = vec![FormatId::F16; self.layers * 2];
        for side in [Side::K, Side::V] {
            let names = self.floors.of(side);
            if names.len() != self.layers {
                let count = names.len();
                let layers = self.layers;
                return Err(format!(
                    "it has {count} floors of {} for {layers} layers",
                    name(side)
                ));
            }
            for (layer, text) in names.iter().enumerate() {
                formats[layer * 2 + side as usize] = format_of(text, side)?;
            }
        }
        Ok(formats)
    }

    /// Whether all parts are there and agree.
    pub(super) fn check(&self) -> Result<(), String> {
        // Bounds what a hostile file can make this reserve.
        if self.layers > 4096 || self.kv_heads > 1024 || self.head_dim > 4096 {
            return Err(format!(
                "it says {} layers of {} KV heads of {}; at most 4096 of 1024 of 4096 fit",
                self.layers, self.kv_heads, self.head_dim
            ));
        }
        let geometry = self.geometry();
        geometry.validate().map_err(|e| e.to_string())?;
        let floors = self.floor_formats()?;
        let (_, ends) = self.walk(geometry, None).map_err(|e| e.to_string())?;
        if let Some(page) = (0..ends.len()).find(|p| ends[*p] != floors[*p]) {
            let (layer, side) = (page / 2, name(Side::of_page(page)));
            let (end, floor) = (ends[page], floors[page]);
            return Err(format!(
                "its shrink order takes layer{layer}.{side} to {end}, its floor there is {floor}"
            ));
        }
        for side in [Side::K, Side::V] {
            for (format, losses) in self.sensitivities.of(side) {
                format_of(format, side)?;
                let sound = losses.iter().all(|x| x.is_finite() && *x >= 0.0);
                if losses.len() != self.layers || !sound {
                    return Err(format!(
                        "the sensitivities of {} at {format} must be {} numbers that are not \
                         negative",
                        name(side),
                        self.layers
                    ));
                }
            }
            if let Some(recent) = &self.recent {
                let ratios = recent.ratios.of(side);
                let sound = ratios.iter().all(|r| (0.0..=RECENT_RATIO_MAX).contains(r));
                if ratios.len() != self.layers || !sound {
                    return Err(format!(
                        "the recent ratios of {} must be {} numbers from 0 to {RECENT_RATIO_MAX}",
                        name(side),
                        self.layers
                    ));
                }
            }
        }
        if let Some(scales) = &self.key_scales {
            format_of(&scales.format, Side::K)?;
            scales.check(self.layers, self.kv_heads, self.head_dim)?;
        }
        Ok(())
    }
}

fn name(side: Side) -> &'static str {
    match side {
        Side::K => "k",
        Side::V => "v",
    }
}

fn format_of(text: &str, side: Side) -> Result<FormatId, String> {
    let format: FormatId = text
        .parse()
        .map_err(|e: ebb_kernels::formats::FormatError| e.to_string())?;
    match format.is_legal(side) {
        true => Ok(format),
        false => Err(format!("{format} cannot hold {}", name(side))),
    }
}
