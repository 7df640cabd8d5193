//! AFMoE, Arcee's Trinity: norms around attention and MLP, gated attention, windows in three of
//! four layers, which alone have RoPE, and experts chosen by sigmoids with a correction.

use ebb_kernels::model::{
    LayerTensor, ModelSpec, NormPlace, OutputGate, QkNorm, RouterScores, Routing, TensorName,
};

use super::{Family, GgufFamily, StoredTensor, TextType, glm4_moe, llama_gguf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::WINDOW_PATTERN;
use crate::model::gguf::experts::{
    DENSE_LAYERS, EXPERT_WIDTH, EXPERTS, SHARED_COUNT, SIGMOID_ROUTING,
};
use crate::model::hf::config::{HfDefaults, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "afmoe",
    hf_class: "AfmoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["afmoe"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
            "num_attention_heads": 16, "vocab_size": 200192, "max_position_embeddings": 16384,
            "num_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "head_dim": 128, "rms_norm_eps": 1e-5,
            "sliding_window": 1024, "global_attn_every_n_layers": 4, "num_dense_layers": 1,
            "num_shared_experts": 2
        }"#,
    }],
    hf_spec: |config| {
        config.refuse_other_text("score_func", "sigmoid")?;
        for groups in ["n_group", "num_expert_groups"] {
            config.refuse_other_size(groups, 1)?;
        }
        let mut model = config.uniform(&HfDefaults::default())?;
        model.qk_norm = QkNorm::PerHead;
        let mut spec = model.spec();
        if config.bool("mup_enabled")?.unwrap_or(false) {
            spec.embedding_multiplier = (spec.hidden as f32).sqrt();
        }
        let interval = config.interval("global_attn_every_n_layers", FULL_INTERVAL)?;
        let sliding = config.sliding_layers(&spec, interval)?;
        config.put_windows(&mut spec, WindowRule::Always, |layer| sliding[layer])?;
        finish(&mut spec, &sliding);
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            correction: true,
            groups: None,
            renormalised: config.bool("route_norm")?.unwrap_or(true),
            scale: config.number("route_scale")?.unwrap_or(1.0) as f32,
        };
        let mut experts = config.experts("moe_intermediate_size", routing)?;
        experts.shared = config.shared_experts("num_shared_experts", experts.intermediate)?;
        let dense = config.size("num_dense_layers")?.unwrap_or(1);
        put_experts(&mut spec, &experts, |layer| layer >= dense);
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return glm4_moe::hf_tensor(name);
        };
        let part = match part {
            L::AttnPostNorm => "post_attention_layernorm.weight",
            L::MlpNorm => "pre_mlp_layernorm.weight",
            L::MlpPostNorm => "post_mlp_layernorm.weight",
            L::Router => "mlp.router.gate.weight",
            L::RouterCorrection => "mlp.expert_bias",
            _ => return glm4_moe::hf_tensor(name),
        };
        StoredTensor::own(name, format!("model.layers.{layer}.{part}"))
    },
    gguf: Some(GgufFamily {
        architecture: "afmoe",
        keys: &[
            EXPERTS,
            SIGMOID_ROUTING,
            &[WINDOW_PATTERN, EXPERT_WIDTH, SHARED_COUNT, DENSE_LAYERS],
        ],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHead;
            let mut spec = model.spec();
            // Files do not say whether embeddings are multiplied; those of all published models
            // are.
            spec.embedding_multiplier = (spec.hidden as f32).sqrt();
            // Without a window no layer would be told apart as one that has RoPE.
            let missing = || Refusal::Missing("afmoe.attention.sliding_window".to_owned());
            let window = config.window()?.ok_or_else(missing)?;
            let sliding = config.put_windows(&mut spec, Some(window), FULL_INTERVAL)?;
            finish(&mut spec, &sliding);
            config.put_sigmoid_experts(&mut spec, config.dense_layers(0)?, 0)?;
            Ok(spec)
        },
        tensor: |name| match name {
            TensorName::Layer(layer, LayerTensor::OutputGate) => {
                StoredTensor::own(name, format!("blk.{layer}.attn_gate.weight"))
            }
            _ => llama_gguf(name),
        },
        permutes_qk: false,
    }),
};

fn finish(spec: &mut ModelSpec, sliding: &[bool]) {
    for (layer, is_sliding) in spec.layers.iter_mut().zip(sliding) {
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
        let attention = layer.attention_mut();
        attention.output_gate = Some(OutputGate::SIGMOIDS);
        attention.rope = attention.rope.filter(|_| *is_sliding);
    }
}
