//! gpt-oss: windows in every other layer, sinks, biases everywhere, a clamped gate. Its experts are
//! stored by columns as bf16, and by rows as MXFP4.

use ebb_kernels::model::{
    ExpertActivation, ExpertsSpec, LayerTensor, ModelSpec, Routing, TensorName,
};

use super::stored::GATE_UP;
use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::WINDOW_PATTERN;
use crate::model::gguf::experts::{EXPERT_WIDTH, EXPERTS};
use crate::model::hf::config::{AttentionBias, HfDefaults, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 2;

/// What the gate is multiplied with in its sigmoid.
const ALPHA: f32 = 1.702;

/// The bound of gate and up, unless the configuration has another.
const LIMIT: f64 = 7.0;

const GATE_UP_BIAS: &[LayerTensor] = &[LayerTensor::ExpertGateBias, LayerTensor::ExpertUpBias];
const DOWN: &[LayerTensor] = &[LayerTensor::ExpertDown];

pub(super) static FAMILY: Family = Family {
    name: "gpt_oss",
    hf_class: "GptOssForCausalLM",
    hf_text: &[TextType {
        model_types: &["gpt_oss"],
        sizes: r#"{
            "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 201088,
            "max_position_embeddings": 131072, "num_local_experts": 128, "num_experts_per_tok": 4
        }"#,
        constants: r#"{
            "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "sliding_window": 128,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": false, "original_max_position_embeddings": 4096
            }
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")?.unwrap_or(true);
        model.o_bias = model.qkv_bias;
        let mut spec = model.spec();
        let is_sliding = |layer| layer % FULL_INTERVAL == 0;
        config.put_windows(&mut spec, WindowRule::Always, is_sliding)?;
        let limit = config.number("swiglu_limit")?.unwrap_or(LIMIT) as f32;
        let experts = config.experts("intermediate_size", Routing::SOFTMAX_OF_CHOSEN)?;
        finish(&mut spec, experts, limit);
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return llama_hf(name);
        };
        let stored = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        match part {
            L::Router => StoredTensor::own(name, stored("router.weight")),
            L::RouterBias => StoredTensor::own(name, stored("router.bias")),
            L::ExpertGate | L::ExpertUp => {
                StoredTensor::in_turn(name, stored("experts.gate_up_proj"), GATE_UP)
            }
            L::ExpertGateBias | L::ExpertUpBias => {
                StoredTensor::in_turn(name, stored("experts.gate_up_proj_bias"), GATE_UP_BIAS)
            }
            L::ExpertDown => StoredTensor::in_turn(name, stored("experts.down_proj"), DOWN),
            L::ExpertDownBias => StoredTensor::own(name, stored("experts.down_proj_bias")),
            _ => llama_hf(name),
        }
    },
    gguf: Some(GgufFamily {
        architecture: "gpt-oss",
        keys: &[EXPERTS, &[EXPERT_WIDTH, WINDOW_PATTERN]],
        spec: |config| {
            let mut model = config.uniform()?;
            (model.qkv_bias, model.o_bias) = (true, true);
            let mut spec = model.spec();
            // Without a window it would be another model.
            let missing = || Refusal::Missing("gpt-oss.attention.sliding_window".to_owned());
            let window = config.window()?.ok_or_else(missing)?;
            config.put_windows(&mut spec, Some(window), FULL_INTERVAL)?;
            let experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
            finish(&mut spec, experts, LIMIT as f32);
            Ok(spec)
        },
        tensor: |name| match name {
            TensorName::Layer(layer, LayerTensor::MlpNorm) => {
                StoredTensor::own(name, format!("blk.{layer}.post_attention_norm.weight"))
            }
            _ => llama_gguf(name),
        },
        permutes_qk: false,
    }),
};

/// What the configurations of all files have in common.
fn finish(spec: &mut ModelSpec, mut experts: ExpertsSpec, limit: f32) {
    for layer in &mut spec.layers {
        layer.attention_mut().sinks = true;
    }
    experts.router_bias = true;
    experts.biases = true;
    experts.activation = ExpertActivation::Clamped {
        limit,
        alpha: ALPHA,
    };
    put_experts(spec, &experts, |_| true);
}
