//! Cohere 2 with experts: dense layers first, whose windows and RoPE are their own matter.

use ebb_kernels::model::{Activation, Mlp, ModelSpec, NormKind, NormPlace, RouterScores, Routing};

use super::{Family, GgufFamily, TextType, glm4_moe, llama_gguf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::{
    GgufConfig, LAYER_NORM_EPS, PREDICTING, RMS_NORM_EPS, WINDOW_PATTERN,
};
use crate::model::gguf::experts::{
    DENSE_LAYERS, EXPERT_WIDTH, EXPERTS, SHARED_COUNT, SHARED_WIDTH, SIGMOID_ROUTING,
};
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "cohere2_moe",
    hf_class: "Cohere2MoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["cohere2_moe"],
        sizes: r#"{
            "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "vocab_size": 256000, "max_position_embeddings": 8192,
            "num_experts": 8, "num_experts_per_tok": 2
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "head_dim": 128, "tie_word_embeddings": true,
            "sliding_window": 4096
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            ..HfDefaults::default()
        };
        // Without a window no layer has RoPE in transformers.
        if config.size("sliding_window")?.is_none() {
            return Err(Refusal::Missing("sliding_window".to_owned()));
        }
        let mut model = config.uniform(&defaults)?;
        // RMSNorm where the file has an epsilon for it.
        let rms_eps = config.number("rms_norm_eps")?;
        let eps = rms_eps.or(config.number("layer_norm_eps")?);
        model.norm_eps = eps.unwrap_or(1e-5) as f32;
        let dense_width = config.size("prefix_dense_intermediate_size")?;
        let dense_width = dense_width.unwrap_or(model.intermediate);
        let mut spec = model.spec();
        if rms_eps.is_none() {
            spec.norms.kind = NormKind::Layer;
        }
        spec.logit_multiplier = config.number("logit_scale")?.unwrap_or(0.0625) as f32;
        let sparse = config.sparse_kinds(spec.layers.len())?;
        put_attention(config, &mut spec, &sparse)?;
        for layer in &mut spec.layers {
            layer.mlp_norm = NormPlace::Shared;
            layer.mlp = Mlp::Dense {
                intermediate: dense_width,
                activation: Activation::Silu,
            };
        }
        let mut experts = config.experts("intermediate_size", routing(config)?)?;
        experts.shared = config.shared_experts("num_shared_experts", experts.intermediate)?;
        if experts.shared.is_some() {
            // They are averaged where the file does not say so.
            const HOW: &str = "shared_expert_combination_strategy";
            if config.text(HOW)? != Some("sum") {
                return Err(Refusal::unsupported(HOW, r#""average""#, "sum"));
            }
        }
        put_experts(&mut spec, &experts, |layer| sparse[layer]);
        Ok(spec)
    },
    hf_tensor: |name| glm4_moe::hf_tensor(name).interleaved(),
    gguf: Some(GgufFamily {
        architecture: "cohere2moe",
        keys: &[
            EXPERTS,
            SIGMOID_ROUTING,
            &[
                "logit_scale",
                LAYER_NORM_EPS,
                RMS_NORM_EPS,
                WINDOW_PATTERN,
                EXPERT_WIDTH,
                SHARED_COUNT,
                SHARED_WIDTH,
                DENSE_LAYERS,
                PREDICTING,
            ],
        ],
        spec: gguf_spec,
        tensor: llama_gguf,
        // They are interleaved as they are in transformers.
        permutes_qk: true,
    }),
};

/// Dense layers have RoPE whether or not they have windows.
fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    if let Some(count) = config.size(SHARED_COUNT)?.filter(|count| *count > 0) {
        let supported = "0, since what they put out is averaged with that of the others";
        return Err(Refusal::unsupported(
            config.name(SHARED_COUNT),
            count,
            supported,
        ));
    }
    let mut model = config.uniform()?;
    config.leave_out_predicting(&mut model)?;
    let mut spec = model.spec();
    if config.number(RMS_NORM_EPS)?.is_none() {
        spec.norms.kind = NormKind::Layer;
    }
    let required = |key: &str| Refusal::Missing(config.name(key));
    // 0 stands for none.
    let scale = config.number("logit_scale")?.filter(|scale| *scale != 0.0);
    spec.logit_multiplier = scale.ok_or_else(|| required("logit_scale"))?;
    // Without a window no layer would be told apart as one that has RoPE.
    let window = config.window()?;
    let window = window.ok_or_else(|| required("attention.sliding_window"))?;
    let sliding = config.put_windows(&mut spec, Some(window), FULL_INTERVAL)?;
    let dense = config.dense_layers(0)?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        layer.mlp_norm = NormPlace::Shared;
        let attention = layer.attention_mut();
        let has_rope = sliding[index] || index < dense;
        attention.rope = attention.rope.filter(|_| has_rope);
    }
    let experts = config.experts(dense, config.sigmoid_routing(dense)?)?;
    put_experts(&mut spec, &experts, |layer| layer >= dense);
    Ok(spec)
}

/// Windows, which say where RoPE is; of dense layers all have it if their interval is 1.
fn put_attention(config: &HfConfig, spec: &mut ModelSpec, sparse: &[bool]) -> Result<(), Refusal> {
    let first = config.size("first_k_dense_replace")?.unwrap_or(0);
    let of_dense = config.interval("prefix_dense_sliding_window_pattern", 1)?;
    let of_others = config.interval("sliding_window_pattern", FULL_INTERVAL)?;
    let by_default = |layer: usize| match layer.checked_sub(first) {
        None => !(layer + 1).is_multiple_of(of_dense),
        Some(layer) => !(layer + 1).is_multiple_of(of_others),
    };
    let sliding = config.sliding_layers_or(spec, by_default)?;
    config.put_windows(spec, WindowRule::Always, |layer| sliding[layer])?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let attention = layer.attention_mut();
        let has_rope = sliding[index] || (!sparse[index] && of_dense == 1);
        attention.rope = attention.rope.filter(|_| has_rope);
    }
    Ok(())
}

/// The best scores become a softmax over those chosen, or sigmoids.
fn routing(config: &HfConfig) -> Result<Routing, Refusal> {
    const HOW: &str = "expert_selection_fn";
    if config.text(HOW)? != Some("sigmoid") {
        config.refuse_other_text(HOW, "softmax")?;
        return Ok(Routing::SOFTMAX_OF_CHOSEN);
    }
    Ok(Routing {
        scores: RouterScores::Sigmoid,
        renormalised: config.bool("norm_topk_prob")?.unwrap_or(true),
        ..Routing::SOFTMAX_OF_CHOSEN
    })
}
