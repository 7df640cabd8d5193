//! Qwen3.5-MoE and Qwen3.6-MoE, the language model: Qwen3.5 with experts.

use super::qwen3_next_gguf::{EXPERT_KEYS, KEYS, gguf_spec, gguf_tensor, put_gguf_experts};
use super::{Family, GgufFamily, TextType, qwen3_5_text, qwen3_next};
use crate::model::gguf::experts::EXPERTS;

pub(super) static FAMILY: Family = Family {
    name: "qwen3_5_moe_text",
    hf_class: "Qwen3_5MoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["qwen3_5_moe_text"],
        sizes: r#"{
            "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
            "num_key_value_heads": 2, "vocab_size": 248320, "max_position_embeddings": 32768,
            "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512
        }"#,
        // No layer is dense, so the width of such layers says nothing.
        constants: r#"{
            "head_dim": 256, "partial_rotary_factor": 0.25, "intermediate_size": 1,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "norm_topk_prob": true
        }"#,
    }],
    hf_spec: |config| {
        let mut spec = qwen3_next::hybrid(config)?;
        config.put_gated_experts(&mut spec)?;
        Ok(spec)
    },
    hf_tensor: qwen3_5_text::hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "qwen35moe",
        keys: &[KEYS, EXPERTS, EXPERT_KEYS],
        spec: |config| {
            let mut spec = gguf_spec(config)?;
            put_gguf_experts(config, &mut spec)?;
            Ok(spec)
        },
        // As in Qwen3.5.
        tensor: |name| gguf_tensor(name).heads_in_turn(),
        permutes_qk: false,
    }),
};
