//! Phi-MoE: LayerNorm, and a sparse mixer of two experts.
//!
//! The published Phi-3.5-MoE is refused by name: its output projection has a bias (`lm_head_bias`),
//! and with its LongRoPE cosine and sine are multiplied by `short_mscale` or `long_mscale`. GGUF
//! files are computed as the Hugging Face model is; llama.cpp has RMSNorm and a plain softmax.

use ebb_kernels::model::{ExpertsSpec, ModelSpec, NormKind, Norms, RouterScores, Routing};

use super::{Family, GgufFamily, TextType, llama_gguf, mixtral};
use crate::model::experts::put_experts;
use crate::model::gguf::experts::EXPERTS;
use crate::model::hf::config::{AttentionBias, HfDefaults, RopeScalings, WindowRule};

/// How far behind the best expert another may be, unless the configuration says otherwise.
const JITTER: f64 = 0.01;

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
            attention_bias: AttentionBias::Other,
            rope_scalings: RopeScalings::None,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
        model.o_bias = model.qkv_bias;
        let mut spec = model.spec();
        config.put_windows(&mut spec, WindowRule::Always, |_| true)?;
        let jitter = config.number("router_jitter_noise")?.unwrap_or(JITTER);
        finish(
            &mut spec,
            &config.experts("intermediate_size", routing(jitter))?,
        );
        Ok(spec)
    },
    hf_tensor: mixtral::hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "phimoe",
        keys: &[EXPERTS],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            model.o_bias = model.qkv_bias;
            let mut spec = model.spec();
            finish(&mut spec, &config.experts(0, routing(JITTER))?);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

fn routing(jitter: f64) -> Routing {
    Routing {
        scores: RouterScores::SparseMixer {
            jitter: jitter as f32,
        },
        ..Routing::SOFTMAX_OF_CHOSEN
    }
}

/// What the configurations of all files have in common.
fn finish(spec: &mut ModelSpec, experts: &ExpertsSpec) {
    spec.norms = Norms {
        kind: NormKind::Layer,
        bias: true,
        ..Norms::default()
    };
    put_experts(spec, experts, |_| true);
}
