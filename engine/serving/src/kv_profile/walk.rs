//! Along a profile's shrink order.

use ebb_block_manager::precision::LevelChange;
use ebb_kernels::formats::{FormatId, RecordShape, legal_shrink};
use ebb_kernels::kv::{KvGeometry, KvLayout};

use super::{Profile, ProfileError};
use crate::kv_pages::{Guards, PageFormats, Protect, level_change, page, protected_formats};

/// Mean stored bits of sealed pages of these formats, `[layer * 2 + side]`: `mean_bits_sealed`.
///
/// # Errors
/// When the model cannot have such pages.
pub fn width(geometry: KvGeometry, formats: &[FormatId]) -> Result<f64, String> {
    let elements = geometry.block_bytes() as f64 / 2.0;
    let cost = KvLayout::cost(geometry, geometry.frame_layout(), formats);
    let [whole, _] = cost.map_err(|e| e.to_string())?;
    Ok(whole.bytes as f64 * 8.0 / elements)
}

impl Profile {
    /// The level changes in order, as few as come to `bits` (`mean_bits_sealed`) if that is given.
    ///
    /// # Errors
    /// When the profile does not fit the model, or does not go that far.
    pub fn changes(
        &self,
        geometry: KvGeometry,
        bits: Option<f64>,
    ) -> Result<Vec<LevelChange>, ProfileError> {
        Ok(self.walk(geometry, bits)?.0)
    }

    /// Formats of sealed pages at a width, and of protected ones.
    ///
    /// # Errors
    /// When the profile does not fit the model, or does not go that far.
    pub fn formats(
        &self,
        geometry: KvGeometry,
        bits: Option<f64>,
        protect: Protect,
    ) -> Result<PageFormats, ProfileError> {
        let sealed = self.walk(geometry, bits)?.1;
        Ok(PageFormats {
            protected: protected_formats(&sealed, protect),
            sealed,
            guards: Guards::usual(geometry.layers),
            max_length: None,
        })
    }

    pub(super) fn walk(
        &self,
        geometry: KvGeometry,
        bits: Option<f64>,
    ) -> Result<(Vec<LevelChange>, Vec<FormatId>), ProfileError> {
        let shape = |layers, kv_heads, head_dim| {
            format!("{layers} layers of {kv_heads} KV heads of {head_dim}")
        };
        let own = shape(self.layers, self.kv_heads, self.head_dim);
        let served = shape(geometry.layers, geometry.kv_heads, geometry.head_dim);
        if own != served {
            return Err(ProfileError::Shape {
                model: self.model.name.clone(),
                profile: own,
                served,
            });
        }
        let elements = geometry.block_bytes() as f64 / 2.0;
        let mut formats = vec![FormatId::F16; geometry.layers * 2];
        let (mut changes, mut bytes, mut now) = (Vec::new(), geometry.block_bytes(), 16.0);
        for (index, given) in self.shrink_order.iter().enumerate() {
            if bits.is_some_and(|bits| now <= bits) {
                break;
            }
            let wrong = |cause: String| ProfileError::Step {
                step: index,
                page: given.page.clone(),
                to: given.to.clone(),
                cause,
            };
            let found = page(&given.page).and_then(|(layer, side)| Some((layer?, side)));
            let (layer, side) =
                found.ok_or_else(|| wrong("pages are layer0.k, layer0.v".into()))?;
            if layer >= geometry.layers {
                return Err(wrong(format!("the model has {} layers", geometry.layers)));
            }
            let to: FormatId = given.to.parse().map_err(|e| wrong(format!("{e}")))?;
            let at = &mut formats[layer * 2 + side as usize];
            if !legal_shrink(*at, to, side) {
                return Err(wrong(format!("a page cannot go there from {at}")));
            }
            let shape = RecordShape {
                side,
                head_dim: geometry.head_dim,
            };
            let page_bytes = |format: FormatId| {
                let record = format.record_bytes(shape).map_err(|e| wrong(e.to_string()));
                record.map(|bytes| bytes * geometry.kv_heads)
            };
            bytes = bytes - page_bytes(*at)? + page_bytes(to)?;
            now = bytes as f64 * 8.0 / elements;
            *at = to;
            changes.push(level_change(layer, side, to));
        }
        match bits {
            Some(asked) if now > asked => Err(ProfileError::Width { asked, least: now }),
            _ => Ok((changes, formats)),
        }
    }
}
