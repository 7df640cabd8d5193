//! Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and one beside them that every token goes
//! through, as far as its gate lets it.

use ebb_kernels::model::{Routing, SharedExpert};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::experts::{EXPERT_WIDTH, EXPERTS, SHARED_WIDTH};
use crate::model::hf::config::{AttentionBias, HfDefaults, WindowRule};

pub(super) static FAMILY: Family = Family {
    name: "qwen2_moe",
    hf_class: "Qwen2MoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["qwen2_moe"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936,
            "max_position_embeddings": 32768, "num_experts": 60, "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632
        }"#,
        constants: r#"{"sliding_window": 4096}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("qkv_bias")?.unwrap_or(true);
        let mut spec = model.spec();
        // Every other layer of the first ones, unlike Qwen2.
        let windowed = config.size("max_window_layers")?.unwrap_or(28);
        let has_window = |layer| layer % 2 == 0 && layer < windowed;
        config.put_windows(&mut spec, WindowRule::IfFlagged, has_window)?;
        config.put_gated_experts(&mut spec)?;
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "qwen2moe",
        keys: &[EXPERTS, &[EXPERT_WIDTH, SHARED_WIDTH]],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qkv_bias = true;
            let mut spec = model.spec();
            let routing = Routing {
                renormalised: false,
                ..Routing::SOFTMAX_OF_CHOSEN
            };
            let mut experts = config.experts(0, routing)?;
            let missing = || Refusal::Missing(format!("qwen2moe.{SHARED_WIDTH}"));
            experts.shared = Some(SharedExpert {
                intermediate: config.size(SHARED_WIDTH)?.ok_or_else(missing)?,
                gated: true,
            });
            put_experts(&mut spec, &experts, |_| true);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
