//! How a device holds a model's weights.

use std::sync::Arc;

use ebb_kernels::model::OnlineKeyScales;
use ebb_models::model::{LoadedModel, ModelWeights};

use super::DeviceError;

/// The weights that a backend is given. Packed ones cannot be changed: what could be folded into
/// bf16, V's rotation and key scales, is computed in every step then.
pub(super) struct HeldWeights {
    pub(super) weights: ModelWeights,
    /// Whether any are packed, so that V is rotated in every step if it is rotated.
    pub(super) is_packed: bool,
    /// Key scales that are not in the weights.
    pub(super) scale_k_online: Option<Arc<OnlineKeyScales>>,
}

impl HeldWeights {
    /// Those of a model, or all of them expanded to bf16.
    pub(super) fn of(model: &LoadedModel, expand: bool) -> Result<Self, DeviceError> {
        let is_packed = model.is_packed();
        let is_packed = !expand && is_packed.map_err(|e| DeviceError::Weights(e.to_string()))?;
        Ok(match is_packed {
            true => Self {
                weights: model.unfolded_weights(),
                is_packed,
                scale_k_online: model.online_key_scales().map(Arc::new),
            },
            false => Self {
                weights: model.weights().expanded(),
                is_packed,
                scale_k_online: None,
            },
        })
    }
}
