//! Qwen3-MoE: Qwen3 with experts.

use ebb_kernels::model::{QkNorm, Routing};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::experts::put_experts;
use crate::model::gguf::experts::{EXPERT_WIDTH, EXPERTS};
use crate::model::hf::config::{HfDefaults, WindowRule};

pub(super) static FAMILY: Family = Family {
    name: "qwen3_moe",
    hf_class: "Qwen3MoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["qwen3_moe"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
            "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936,
            "max_position_embeddings": 32768, "num_local_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768
        }"#,
        constants: r#"{"sliding_window": 4096}"#,
    }],
    hf_spec: |config| {
        let mut model = config.uniform(&HfDefaults::default())?;
        model.qk_norm = QkNorm::PerHead;
        let mut spec = model.spec();
        config.put_windows(&mut spec, WindowRule::IfFlagged, |_| true)?;
        let experts = config.experts("moe_intermediate_size", config.softmax_routing()?)?;
        put_experts(&mut spec, &experts, config.sparse_layers()?);
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "qwen3moe",
        keys: &[EXPERTS, &[EXPERT_WIDTH]],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHead;
            let mut spec = model.spec();
            let experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
            put_experts(&mut spec, &experts, |_| true);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
