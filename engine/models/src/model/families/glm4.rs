//! GLM-4 of 2025: norms around attention and MLP, half of each head rotates, in pairs of
//! neighbouring channels.

use ebb_kernels::model::{LayerTensor, ModelSpec, NormPlace, TensorName, UniformModel};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults};

const GATE_UP: &[LayerTensor] = &[LayerTensor::Gate, LayerTensor::Up];

/// Also that of GLM-4 of 2024, but for its name.
pub(super) const TEXT: TextType = TextType {
    model_types: &["glm4"],
    sizes: r#"{
        "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 2, "vocab_size": 151552,
        "max_position_embeddings": 131072
    }"#,
    constants: r#"{"head_dim": 128, "rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5}"#,
};

pub(super) static FAMILY: Family = Family {
    name: "glm4",
    hf_class: "Glm4ForCausalLM",
    hf_text: &[
        TEXT,
        TextType {
            model_types: &["glm4v_text"],
            sizes: r#"{
                "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
                "num_attention_heads": 32, "num_key_value_heads": 2, "vocab_size": 151552,
                "max_position_embeddings": 32768
            }"#,
            constants: r#"{"rms_norm_eps": 1e-5}"#,
        },
        TextType {
            model_types: &["glm_ocr_text"],
            sizes: r#"{
                "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16,
                "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 59392,
                "max_position_embeddings": 131072
            }"#,
            constants: r#"{"rms_norm_eps": 1e-5, "attention_bias": false}"#,
        },
    ],
    hf_spec: |config| Ok(spec(hf_model(config)?)),
    hf_tensor: |name| {
        let TensorName::Layer(layer, part) = name else {
            return llama_hf(name);
        };
        let own = |part| StoredTensor::own(name, format!("model.layers.{layer}.{part}.weight"));
        match part {
            LayerTensor::AttnPostNorm => own("post_self_attn_layernorm"),
            LayerTensor::MlpNorm => own("post_attention_layernorm"),
            LayerTensor::MlpPostNorm => own("post_mlp_layernorm"),
            LayerTensor::Gate | LayerTensor::Up => {
                let stored = format!("model.layers.{layer}.mlp.gate_up_proj.weight");
                StoredTensor::part(name, stored, GATE_UP)
            }
            _ => llama_hf(name).interleaved(),
        }
    },
    gguf: Some(GgufFamily {
        architecture: "glm4",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform_with_part(false)?;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            Ok(spec(model))
        },
        tensor: |name| match name {
            TensorName::Layer(layer, part) if GATE_UP.contains(&part) => {
                StoredTensor::part(name, format!("blk.{layer}.ffn_up.weight"), GATE_UP)
            }
            _ => llama_gguf(name),
        },
        // They are interleaved as they are in transformers.
        permutes_qk: true,
    }),
};

/// Also GLM-4's of 2024.
pub(super) fn hf_model(config: &HfConfig) -> Result<UniformModel, Refusal> {
    let defaults = HfDefaults {
        attention_bias: AttentionBias::Other,
        rotates_part_of_a_head: true,
        ..HfDefaults::default()
    };
    let mut model = config.uniform(&defaults)?;
    model.qkv_bias = config.bool("attention_bias")?.unwrap_or(true);
    Ok(model)
}

fn spec(model: UniformModel) -> ModelSpec {
    let mut spec = model.spec();
    for layer in &mut spec.layers {
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
    }
    spec
}
