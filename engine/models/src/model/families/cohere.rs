//! Cohere's Command R: LayerNorm, attention and MLP beside each other, RoPE that rotates pairs of
//! neighbouring channels.

use ebb_kernels::model::{ModelSpec, NormKind, NormPlace};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::gguf::config::LAYER_NORM_EPS;
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "cohere",
    hf_class: "CohereForCausalLM",
    hf_text: &[TextType {
        model_types: &["cohere"],
        sizes: r#"{
            "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "vocab_size": 256000, "max_position_embeddings": 8192
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "tie_word_embeddings": true, "rope_theta": 500000.0
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            ..HfDefaults::default()
        };
        // LayerNorm of heads, each with weights of its own (Command R+).
        config.refuse("use_qk_norm")?;
        let mut model = config.uniform(&defaults)?;
        model.norm_eps = config.number("layer_norm_eps")?.unwrap_or(1e-5) as f32;
        let mut spec = model.spec();
        spec.logit_multiplier = config.number("logit_scale")?.unwrap_or(0.0625) as f32;
        finish(&mut spec);
        Ok(spec)
    },
    hf_tensor: |name| llama_hf(name).interleaved(),
    gguf: Some(GgufFamily {
        architecture: "command-r",
        keys: &[&["logit_scale", LAYER_NORM_EPS]],
        spec: |config| {
            let mut spec = config.uniform()?.spec();
            // 0 stands for none.
            let scale = config.number("logit_scale")?.filter(|scale| *scale != 0.0);
            spec.logit_multiplier = scale.unwrap_or(1.0);
            finish(&mut spec);
            Ok(spec)
        },
        tensor: llama_gguf,
        // They are interleaved as they are in transformers.
        permutes_qk: true,
    }),
};

fn finish(spec: &mut ModelSpec) {
    spec.norms.kind = NormKind::Layer;
    for layer in &mut spec.layers {
        layer.mlp_norm = NormPlace::Shared;
    }
}
