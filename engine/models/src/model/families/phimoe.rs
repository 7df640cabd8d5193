//! Phi-MoE: LayerNorm, and a sparse mixer of two experts.
//!
//! The published Phi-3.5-MoE is refused by name: its output projection has a bias (`lm_head_bias`),
//! and with its LongRoPE cosine and sine are multiplied by `short_mscale` or `long_mscale`.

use ebb_kernels::model::{NormKind, Norms, RouterScores, Routing};

use super::{Family, TextType, mixtral};
use crate::model::experts::put_experts;
use crate::model::hf::config::{HfDefaults, RopeScalings, WindowRule};

pub(super) static FAMILY: Family = Family {
    name: "phimoe",
    hf_class: "PhimoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["phimoe"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32064,
            "max_position_embeddings": 131072, "num_local_experts": 16, "num_experts_per_tok": 2
        }"#,
        constants: r#"{"rms_norm_eps": 1e-5, "rope_theta": 1000000.0}"#,
    }],
    hf_spec: |config| {
        config.refuse("lm_head_bias")?;
        let defaults = HfDefaults {
            ignores_attention_bias: true,
            rope_scalings: RopeScalings::None,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
        let mut spec = model.spec();
        spec.norms = Norms {
            kind: NormKind::Layer,
            bias: true,
            ..Norms::default()
        };
        for layer in &mut spec.layers {
            let attention = layer.attention_mut();
            attention.o_bias = attention.qkv_bias;
        }
        config.put_windows(&mut spec, WindowRule::Always, |_| true)?;
        let jitter = config.number("router_jitter_noise")?.unwrap_or(0.01) as f32;
        let routing = Routing {
            scores: RouterScores::SparseMixer { jitter },
            ..Routing::SOFTMAX_OF_CHOSEN
        };
        let experts = config.experts("intermediate_size", routing)?;
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor: mixtral::hf_tensor,
    gguf: None,
};
