//! Granite: Llama with multipliers of embeddings, scores, what layers add, and logits.

use ebb_kernels::model::ModelSpec;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf, mamba};
use crate::model::error::Refusal;
use crate::model::gguf::config::{GgufConfig, HAS_ROPE};
use crate::model::gguf::experts::SHARED_WIDTH;
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "granite",
    hf_class: "GraniteForCausalLM",
    hf_text: &[TextType {
        model_types: &["granite"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048
        }"#,
        constants: r#"{"num_key_value_heads": null}"#,
    }],
    hf_spec: |config| hf_spec(config, "intermediate_size"),
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "granite",
        // Files of Granite 4 say what recurrences would be even if there are none.
        keys: &[MULTIPLIERS, mamba::GGUF_KEYS, &[SHARED_WIDTH]],
        spec: gguf_spec,
        tensor: llama_gguf,
        permutes_qk: true,
    }),
};

/// The keys of the multipliers.
pub(super) const MULTIPLIERS: &[&str] = &[
    "attention.scale",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
];

/// Also that of others whose MLPs are as wide as the field `intermediate` says.
pub(super) fn hf_spec(config: &HfConfig, intermediate: &str) -> Result<ModelSpec, Refusal> {
    let defaults = HfDefaults {
        attention_bias: AttentionBias::OfAll,
        ..HfDefaults::default()
    };
    let mut model = config.uniform(&defaults)?;
    model.intermediate = config.required_size(intermediate)?;
    let mut spec = model.spec();
    put_multipliers(config, &mut spec)?;
    Ok(spec)
}

/// The multipliers.
pub(super) fn put_multipliers(config: &HfConfig, spec: &mut ModelSpec) -> Result<(), Refusal> {
    let number = |key| Ok::<_, Refusal>(config.number(key)?.unwrap_or(1.0) as f32);
    spec.embedding_multiplier = number("embedding_multiplier")?;
    spec.residual_multiplier = number("residual_multiplier")?;
    spec.logit_multiplier = 1.0 / number("logits_scaling")?;
    for layer in &mut spec.layers {
        layer.attention_mut().scale = number("attention_multiplier")?;
    }
    Ok(())
}

/// Also that of Granite with windows, and of Granite-MoE.
pub(super) fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    // Files of hybrids say so where there is no RoPE.
    config.refuse_false(HAS_ROPE)?;
    gguf_layers(config)
}

/// Layers that all have attention and dense MLPs, whether there is RoPE or not.
pub(super) fn gguf_layers(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    let mut model = config.uniform()?;
    let attention = config.layers_with_keys(model.layers)?;
    let first = attention.iter().position(|has_keys| *has_keys);
    let first = first.unwrap_or(0);
    model.qkv_bias = config.has_tensor(&format!("blk.{first}.attn_q.bias"));
    model.o_bias = config.has_tensor(&format!("blk.{first}.attn_output.bias"));
    // Files of Granite 4 call dense MLPs shared experts.
    let shared = config.size(SHARED_WIDTH)?.filter(|width| *width > 0);
    model.intermediate = shared.unwrap_or(model.intermediate);
    let mut spec = model.spec();
    // 0 stands for none.
    let number = |key| Ok::<_, Refusal>(config.number(key)?.filter(|value| *value != 0.0));
    spec.embedding_multiplier = number("embedding_scale")?.unwrap_or(1.0);
    spec.residual_multiplier = number("residual_scale")?.unwrap_or(1.0);
    spec.logit_multiplier = 1.0 / number("logit_scale")?.unwrap_or(1.0);
    let scale = number("attention.scale")?;
    for layer in &mut spec.layers {
        let attention = layer.attention_mut();
        attention.scale = scale.unwrap_or(attention.scale);
    }
    Ok(spec)
}
