//! Jais 2: Llama with LayerNorm, biases everywhere and an MLP without gates, of the square of ReLU.

use ebb_kernels::model::NormKind;

use super::{Family, TextType, llama_hf, put_plain_mlp};
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "jais2",
    hf_class: "Jais2ForCausalLM",
    hf_text: &[TextType {
        model_types: &["jais2"],
        sizes: r#"{
            "hidden_size": 3328, "intermediate_size": 26624, "num_hidden_layers": 32,
            "num_attention_heads": 26, "vocab_size": 150272, "max_position_embeddings": 8192
        }"#,
        constants: r#"{"num_key_value_heads": null, "hidden_act": "relu2"}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            has_plain_mlp: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")?.unwrap_or(true);
        model.o_bias = model.qkv_bias;
        model.norm_eps = config.number("layer_norm_eps")?.unwrap_or(1e-5) as f32;
        let mut spec = model.spec();
        spec.norms.kind = NormKind::Layer;
        spec.norms.bias = true;
        put_plain_mlp(&mut spec, config.bool("mlp_bias")?.unwrap_or(true));
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: None,
};
