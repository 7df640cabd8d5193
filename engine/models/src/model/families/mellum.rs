//! Mellum 2: Qwen3-MoE with windows in some layers, whose RoPE is another.

use ebb_kernels::model::{QkNorm, Routing};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::experts::put_experts;
use crate::model::gguf::config::{SLIDING_BASE, WINDOW_PATTERN};
use crate::model::gguf::experts::{EXPERT_WIDTH, EXPERTS};
use crate::model::hf::config::{HfDefaults, WindowRule};

/// The base of the RoPE of layers with windows where the configuration has none at all.
const LOCAL_BASE: f64 = 10_000.0;

/// One layer of so many sees everything, unless a GGUF file says otherwise.
const FULL_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "mellum",
    hf_class: "MellumForCausalLM",
    hf_text: &[TextType {
        model_types: &["mellum"],
        sizes: r#"{
            "hidden_size": 2304, "intermediate_size": 7168, "num_hidden_layers": 28,
            "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 98304,
            "max_position_embeddings": 131072, "num_experts": 64, "num_experts_per_tok": 8,
            "moe_intermediate_size": 896
        }"#,
        constants: r#"{
            "head_dim": 128, "rope_theta": 500000.0, "sliding_window": 1024,
            "norm_topk_prob": true, "first_k_dense_replace": 0
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            has_ropes_by_kind: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qk_norm = QkNorm::PerHead;
        let head_dim = model.head_dim;
        let mut spec = model.spec();
        spec.ropes
            .push(config.sliding_rope(head_dim, Some(LOCAL_BASE))?);
        config.put_windows(&mut spec, WindowRule::Always, |_| false)?;
        let experts = config.experts("moe_intermediate_size", config.softmax_routing()?)?;
        let sparse = config.sparse_kinds(spec.layers.len())?;
        put_experts(&mut spec, &experts, |layer| sparse[layer]);
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "mellum",
        keys: &[EXPERTS, &[WINDOW_PATTERN, SLIDING_BASE, EXPERT_WIDTH]],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHead;
            let mut spec = model.spec();
            // The last is that of the layers with windows, which is not scaled.
            let base = config.number("rope.freq_base")?.unwrap_or(10_000.0);
            let rope = config.sliding_rope(spec.heads().head_dim, base.into())?;
            spec.ropes.push(rope);
            config.put_windows(&mut spec, config.window()?, FULL_INTERVAL)?;
            let experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
            put_experts(&mut spec, &experts, |_| true);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
