//! GLM-4.5, 4.6 and their like: sigmoid scores with a correction, groups of experts, one expert
//! beside them, and dense layers at the bottom. GGUF files of its architecture may be Solar Open's:
//! they say that no layer is dense, and that whole heads rotate.

use ebb_kernels::model::{LayerTensor, ModelSpec, QkNorm, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::{GgufConfig, PREDICTING};
use crate::model::gguf::experts::{
    DENSE_LAYERS, EXPERT_WIDTH, EXPERTS, SHARED_COUNT, SIGMOID_ROUTING,
};
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "glm4_moe",
    hf_class: "Glm4MoeForCausalLM",
    hf_text: &[
        TextType {
            model_types: &["glm4_moe"],
            sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 151552,
            "max_position_embeddings": 131072, "n_routed_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408, "n_shared_experts": 1
        }"#,
            constants: r#"{
            "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "n_shared_experts": 1
        }"#,
        },
        TextType {
            model_types: &["glm4v_moe_text"],
            sizes: r#"{
                "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
                "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 151424,
                "max_position_embeddings": 65536, "n_routed_experts": 128,
                "num_experts_per_tok": 8, "moe_intermediate_size": 1408
            }"#,
            constants: r#"{
                "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "n_shared_experts": 1,
                "attention_bias": true
            }"#,
        },
    ],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            rotates_part_of_a_head: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
        if config.bool("use_qk_norm")?.unwrap_or(false) {
            model.qk_norm = QkNorm::PerHead;
        }
        let mut spec = model.spec();
        let mut experts = config.experts("moe_intermediate_size", config.sigmoid_routing()?)?;
        experts.shared = config.shared_experts("n_shared_experts", experts.intermediate)?;
        let dense = config.size("first_k_dense_replace")?.unwrap_or(1);
        put_experts(&mut spec, &experts, |layer| layer >= dense);
        Ok(spec)
    },
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "glm4moe",
        keys: &[
            EXPERTS,
            SIGMOID_ROUTING,
            &[EXPERT_WIDTH, SHARED_COUNT, DENSE_LAYERS, PREDICTING],
        ],
        spec: gguf_spec,
        tensor: |name| match name {
            TensorName::Layer(layer, LayerTensor::MlpNorm) => {
                StoredTensor::own(name, format!("blk.{layer}.post_attention_norm.weight"))
            }
            _ => llama_gguf(name),
        },
        permutes_qk: false,
    }),
};

/// Also that of others whose shared experts are called so.
pub(super) fn hf_tensor(name: TensorName) -> StoredTensor {
    let TensorName::Layer(layer, part) = name else {
        return llama_hf(name);
    };
    let part = match part {
        LayerTensor::SharedGate => "gate_proj",
        LayerTensor::SharedUp => "up_proj",
        LayerTensor::SharedDown => "down_proj",
        _ => return llama_hf(name),
    };
    let stored = format!("model.layers.{layer}.mlp.shared_experts.{part}.weight");
    StoredTensor::own(name, stored)
}

fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    let mut model = config.uniform_with_part(false)?;
    config.leave_out_predicting(&mut model)?;
    model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
    if config.has_tensor("blk.0.attn_q_norm.weight") {
        model.qk_norm = QkNorm::PerHead;
    }
    let mut spec = model.spec();
    // Solar Open's need not say that none is.
    let has_experts = config.has_tensor("blk.0.ffn_gate_inp.weight");
    let dense = config.dense_layers(usize::from(!has_experts))?;
    config.put_sigmoid_experts(&mut spec, dense, 1)?;
    Ok(spec)
}
