//! nanochat: norms without weights, of embeddings too and of every Q and K head behind RoPE, an MLP
//! without gates, of the square of ReLU, and capped logits.

use ebb_kernels::model::{LayerTensor, QkNorm, TensorName};

use super::{Family, StoredTensor, TextType, llama_hf, put_plain_mlp};
use crate::model::hf::config::{AttentionBias, HfDefaults};

/// The cap of logits, unless the configuration has another.
const CAP: f64 = 15.0;

pub(super) static FAMILY: Family = Family {
    name: "nanochat",
    hf_class: "NanoChatForCausalLM",
    hf_text: &[TextType {
        model_types: &["nanochat"],
        sizes: r#"{
            "hidden_size": 768, "intermediate_size": 8192, "num_hidden_layers": 12,
            "num_attention_heads": 6, "vocab_size": 50304, "max_position_embeddings": 2048
        }"#,
        constants: r#"{"num_key_value_heads": null, "hidden_act": "relu2"}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            has_plain_mlp: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qk_norm = QkNorm::PerHeadBehindRope;
        // Its pairs of channels turn the other way.
        let long = model.rope.long.iter_mut().map(|long| &mut long.inv_freq);
        let frequencies = long.chain([&mut model.rope.inv_freq]).flatten();
        frequencies.for_each(|frequency| *frequency = -*frequency);
        let mut spec = model.spec();
        spec.embedding_norm = true;
        let cap = config.number_unless_null("final_logit_softcapping", CAP)?;
        spec.logit_soft_cap = cap.map(|cap| cap as f32);
        put_plain_mlp(&mut spec, false);
        Ok(spec)
    },
    hf_tensor: |name| {
        if name.is_norm() {
            return StoredTensor::ones(name);
        }
        let (layer, part) = match name {
            TensorName::Layer(layer, LayerTensor::Up) => (layer, "fc1"),
            TensorName::Layer(layer, LayerTensor::Down) => (layer, "fc2"),
            _ => return llama_hf(name),
        };
        StoredTensor::own(name, format!("model.layers.{layer}.mlp.{part}.weight"))
    },
    gguf: None,
};
