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
    /// Those of a model, or all of them expanded to bf16, of which backends find none packed.
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

#[cfg(test)]
mod tests {
    use ebb_kernels::model::{LayerTensor, TensorName, WeightSource};
    use ebb_kernels::weight_formats::Quantisation;
    use ebb_models::model::{KeyScales, LoadFormat, ModelFiles};
    use serde_json::json;

    use super::*;

    fn model() -> LoadedModel {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16, "intermediate_size": 64, "vocab_size": 40,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        });
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("write");
        let files = ModelFiles::Directory(dir.path().to_owned());
        let mut model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
        let scales = KeyScales {
            format: "int4t".to_owned(),
            alpha: vec![0.5],
            heads: 1,
            scales: vec![vec![3.0; 8]],
        };
        model
            .fold_key_scales(Some(Arc::new(scales)))
            .expect("they fit");
        model
    }

    /// Key scales are in the weights or beside them, never in both and never in neither.
    #[test]
    fn key_scales_are_computed_where_they_cannot_be_folded() {
        let name = TensorName::Layer(0, LayerTensor::K);
        let held = |model: &LoadedModel, expand| HeldWeights::of(model, expand).expect("weights");
        let plain = model();
        let mut quantised = model();
        quantised
            .quantise(Quantisation::Int4)
            .expect("plain weights");
        let folded = |model: &LoadedModel, held: &HeldWeights| {
            let unfolded = model.unfolded_weights().load(name).expect("numbers");
            held.weights.load(name).expect("numbers") != unfolded
        };
        for (model, expand) in [(&plain, false), (&plain, true), (&quantised, true)] {
            let held = held(model, expand);
            assert!(!held.is_packed && held.scale_k_online.is_none());
            assert!(folded(model, &held));
            assert_eq!(held.weights.packed(name).expect("a format"), None);
            // A device that makes random weights by itself would leave the scales out.
            assert_eq!(held.weights.random(), None);
        }
        let held = held(&quantised, false);
        assert!(held.is_packed && !folded(&quantised, &held));
        assert!(held.weights.packed(name).expect("a format").is_some());
        let online = held.scale_k_online.expect("scales");
        assert_eq!(online.scales, [[3.0; 8]]);
    }
}
