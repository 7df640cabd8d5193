//! dots.llm1: Qwen3 with GLM-4-MoE's experts.

use ebb_kernels::model::QkNorm;

use super::{Family, GgufFamily, TextType, glm4_moe, llama_gguf};
use crate::model::experts::put_experts;
use crate::model::gguf::experts::{
    DENSE_LAYERS, EXPERT_WIDTH, EXPERTS, SHARED_COUNT, SHARED_WIDTH, SIGMOID_ROUTING,
};
use crate::model::hf::config::{HfDefaults, WindowRule};

pub(super) static FAMILY: Family = Family {
    name: "dots1",
    hf_class: "Dots1ForCausalLM",
    hf_text: &[TextType {
        model_types: &["dots1"],
        sizes: r#"{
            "hidden_size": 4608, "intermediate_size": 10944, "num_hidden_layers": 62,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 152064,
            "max_position_embeddings": 2048, "moe_intermediate_size": 1408
        }"#,
        constants: r#"{
            "sliding_window": 4096, "max_window_layers": 62, "norm_topk_prob": false,
            "first_k_dense_replace": 0
        }"#,
    }],
    hf_spec: |config| {
        let mut model = config.uniform(&HfDefaults::default())?;
        model.qk_norm = QkNorm::PerHead;
        let mut spec = model.spec();
        let full = config.required_size("max_window_layers")?;
        config.put_windows(&mut spec, WindowRule::Always, |layer| layer >= full)?;
        let mut experts = config.experts("moe_intermediate_size", config.sigmoid_routing()?)?;
        experts.shared = config.shared_experts("n_shared_experts", experts.intermediate)?;
        let sparse = config.sparse_kinds(spec.layers.len())?;
        put_experts(&mut spec, &experts, |layer| sparse[layer]);
        Ok(spec)
    },
    hf_tensor: glm4_moe::hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "dots1",
        keys: &[
            EXPERTS,
            SIGMOID_ROUTING,
            &[EXPERT_WIDTH, SHARED_COUNT, SHARED_WIDTH, DENSE_LAYERS],
        ],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHead;
            let mut spec = model.spec();
            config.put_sigmoid_experts(&mut spec, config.dense_layers(0)?, 0)?;
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
