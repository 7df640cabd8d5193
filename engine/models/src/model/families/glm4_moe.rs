//! GLM-4.5, 4.6 and their like: sigmoid scores with a correction, groups of experts, one expert
//! beside them, and dense layers at the bottom.

use ebb_kernels::model::{
    ExpertGroups, LayerTensor, QkNorm, RouterScores, Routing, SharedExpert, TensorName,
};

use super::{Family, StoredTensor, TextType, llama_hf};
use crate::model::experts::put_experts;
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "glm4_moe",
    hf_class: "Glm4MoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["glm4_moe"],
        defaults: r#"{
            "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 151552,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "n_routed_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            ignores_attention_bias: true,
            rotates_part_of_a_head: true,
            rotary_part: Some(0.5),
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
        if config.bool("use_qk_norm")?.unwrap_or(false) {
            model.qk_norm = QkNorm::PerHead;
        }
        let mut spec = model.spec();
        let groups = ExpertGroups {
            groups: config.size("n_group")?.unwrap_or(1),
            chosen: config.size("topk_group")?.unwrap_or(1),
        };
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            correction: true,
            groups: (groups.groups > 1).then_some(groups),
            renormalised: config.bool("norm_topk_prob")?.unwrap_or(true),
            scale: config.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        };
        let mut experts = config.experts("moe_intermediate_size", routing)?;
        let shared = config.size("n_shared_experts")?.unwrap_or(1);
        experts.shared = (shared > 0).then_some(SharedExpert {
            // They are one expert as wide as all.
            intermediate: shared.saturating_mul(experts.intermediate),
            gated: false,
        });
        let dense = config.size("first_k_dense_replace")?.unwrap_or(1);
        put_experts(&mut spec, &experts, |layer| layer >= dense);
        Ok(spec)
    },
    hf_tensor: |name| {
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
    },
    gguf: None,
};
