//! Cohere's Command R7B and A: LayerNorm, attention and MLP beside each other, windows in three of
//! four layers, and RoPE in those alone.

use ebb_kernels::model::{ModelSpec, NormKind, NormPlace};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::gguf::config::{LAYER_NORM_EPS, WINDOW_PATTERN};
use crate::model::hf::config::{AttentionBias, HfDefaults, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "cohere2",
    hf_class: "Cohere2ForCausalLM",
    hf_text: &[TextType {
        model_types: &["cohere2"],
        sizes: r#"{
            "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "vocab_size": 256000, "max_position_embeddings": 8192
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "tie_word_embeddings": true, "sliding_window": 4096
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            ..HfDefaults::default()
        };
        config.refuse("use_qk_norm")?;
        // Without a window no layer has RoPE in transformers.
        if config.size("sliding_window")?.is_none() {
            return Err(Refusal::Missing("sliding_window".to_owned()));
        }
        let mut model = config.uniform(&defaults)?;
        model.norm_eps = config.number("layer_norm_eps")?.unwrap_or(1e-5) as f32;
        let mut spec = model.spec();
        spec.logit_multiplier = config.number("logit_scale")?.unwrap_or(0.0625) as f32;
        let sliding = config.sliding_layers(&spec, FULL_INTERVAL)?;
        config.put_windows(&mut spec, WindowRule::Always, |layer| sliding[layer])?;
        finish(&mut spec, &sliding);
        Ok(spec)
    },
    hf_tensor: |name| llama_hf(name).interleaved(),
    gguf: Some(GgufFamily {
        architecture: "cohere2",
        keys: &[&["logit_scale", LAYER_NORM_EPS, WINDOW_PATTERN]],
        spec: |config| {
            let mut spec = config.uniform()?.spec();
            // 0 stands for none.
            let scale = config.number("logit_scale")?.filter(|scale| *scale != 0.0);
            let missing = || Refusal::Missing("cohere2.logit_scale".to_owned());
            spec.logit_multiplier = scale.ok_or_else(missing)?;
            // Without a window no layer would be told apart as one that has RoPE.
            let missing = || Refusal::Missing("cohere2.attention.sliding_window".to_owned());
            let window = config.window()?.ok_or_else(missing)?;
            let sliding = config.put_windows(&mut spec, Some(window), FULL_INTERVAL)?;
            finish(&mut spec, &sliding);
            Ok(spec)
        },
        tensor: llama_gguf,
        // They are interleaved as they are in transformers.
        permutes_qk: true,
    }),
};

fn finish(spec: &mut ModelSpec, sliding: &[bool]) {
    spec.norms.kind = NormKind::Layer;
    for (layer, is_sliding) in spec.layers.iter_mut().zip(sliding) {
        layer.mlp_norm = NormPlace::Shared;
        let attention = layer.attention_mut();
        attention.rope = attention.rope.filter(|_| *is_sliding);
    }
}
