//! LFM2-MoE: LFM2 whose upper layers have experts, chosen by sigmoids with a correction.

use ebb_kernels::model::{LayerTensor, RouterScores, Routing, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, lfm2};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::SHORT_CONV_TAPS;
use crate::model::gguf::experts::{DENSE_LAYERS, EXPERT_WIDTH, EXPERTS, GATING};
use crate::model::hf::config::LINEAR;

pub(super) static FAMILY: Family = Family {
    name: "lfm2_moe",
    hf_class: "Lfm2MoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["lfm2_moe"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
            "max_position_embeddings": 128000, "num_experts": 32, "num_experts_per_tok": 4,
            "moe_intermediate_size": 1792
        }"#,
        constants: r#"{
            "norm_eps": 1e-5, "rope_theta": 1000000.0, "conv_L_cache": 3,
            "tie_word_embeddings": true, "num_dense_layers": 2
        }"#,
    }],
    hf_spec: |config| {
        let mut spec = lfm2::model(config)?.spec();
        let kinds = config.attention_layers(spec.layers.len(), &["conv", LINEAR])?;
        let kinds = kinds.ok_or_else(|| Refusal::Missing("layer_types".to_owned()))?;
        lfm2::put_convolutions(config, &mut spec, &kinds)?;
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            correction: config.bool("use_expert_bias")?.unwrap_or(true),
            groups: None,
            renormalised: config.bool("norm_topk_prob")?.unwrap_or(true),
            scale: config.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        };
        let experts = config.experts("moe_intermediate_size", routing)?;
        let dense = config.required_size("num_dense_layers")?;
        put_experts(&mut spec, &experts, |layer| layer >= dense);
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return lfm2::hf_tensor(name);
        };
        let stored = |part: &str| format!("model.layers.{layer}.feed_forward.{part}");
        let expert = |part| StoredTensor::of_each_expert(name, stored(part));
        match part {
            L::Router => StoredTensor::own(name, stored("gate.weight")),
            L::RouterCorrection => StoredTensor::own(name, stored("expert_bias")),
            L::ExpertGate => expert("experts.*.w1.weight"),
            L::ExpertUp => expert("experts.*.w3.weight"),
            L::ExpertDown => expert("experts.*.w2.weight"),
            _ => lfm2::hf_tensor(name),
        }
    },
    gguf: Some(GgufFamily {
        architecture: "lfm2moe",
        keys: &[
            EXPERTS,
            &[SHORT_CONV_TAPS, EXPERT_WIDTH, GATING, DENSE_LAYERS],
        ],
        spec: |config| {
            let mut spec = lfm2::gguf_spec(config)?;
            let dense = config.dense_layers(0)?;
            let experts = config.experts(dense, config.sigmoid_routing(dense)?)?;
            put_experts(&mut spec, &experts, |layer| layer >= dense);
            Ok(spec)
        },
        tensor: lfm2::gguf_tensor,
        permutes_qk: false,
    }),
};
