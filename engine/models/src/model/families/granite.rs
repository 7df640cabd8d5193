//! Granite: Llama with multipliers of embeddings, scores, what layers add, and logits.

use ebb_kernels::model::ModelSpec;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::gguf::config::GgufConfig;
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
        keys: &[&[
            "attention.scale",
            "embedding_scale",
            "residual_scale",
            "logit_scale",
        ]],
        spec: gguf_spec,
        tensor: llama_gguf,
        permutes_qk: true,
    }),
};

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
    config.refuse_false("rope.scaling.finetuned")?;
    let mut model = config.uniform()?;
    model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
    model.o_bias = config.has_tensor("blk.0.attn_output.bias");
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
