//! Granite with windows in three of four layers, sinks, and a RoPE base for each layer. GGUF files
//! of its architecture may be those of Granite MoE with windows: they have experts. One base is
//! that of all layers in them.

use ebb_kernels::model::{LayerTensor, ModelSpec, Routing, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, granite, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::{GgufConfig, WINDOW_PATTERN};
use crate::model::gguf::experts::{EXPERTS, SHARED_WIDTH};
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults, WindowRule};

/// One layer of so many sees everything, the first of each, unless the configuration says
/// otherwise.
const FULL_INTERVAL: usize = 4;

/// The RoPE base of each layer; a layer of 0 knows no positions.
const BASES: &str = "layer_rope_theta";

/// The key of which layers have RoPE.
const ROPE_PATTERN: &str = "attention.rope_pattern";

const SHARED_GATE_UP: &[LayerTensor] = &[LayerTensor::SharedGate, LayerTensor::SharedUp];

pub(super) static FAMILY: Family = Family {
    name: "granite_swa",
    hf_class: "GraniteSWAForCausalLM",
    hf_text: &[TextType {
        model_types: &["granite_swa"],
        sizes: r#"{
            "hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 24,
            "num_attention_heads": 20, "num_key_value_heads": 4, "vocab_size": 100352,
            "max_position_embeddings": 8192
        }"#,
        constants: r#"{
            "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "sliding_window": 128
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            ..HfDefaults::default()
        };
        let model = config.uniform(&defaults)?;
        let mut spec = model.spec();
        granite::put_multipliers(config, &mut spec)?;
        put_layers(config, &defaults, &mut spec)?;
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "granite_swa",
        keys: &[
            EXPERTS,
            &[
                "attention.scale",
                "embedding_scale",
                "residual_scale",
                "logit_scale",
                WINDOW_PATTERN,
                ROPE_PATTERN,
                SHARED_WIDTH,
            ],
        ],
        spec: gguf_spec,
        tensor: |name| match name {
            TensorName::Layer(layer, part) if SHARED_GATE_UP.contains(&part) => {
                let stored = format!("blk.{layer}.ffn_up_shexp.weight");
                StoredTensor::part(name, stored, SHARED_GATE_UP)
            }
            _ => llama_gguf(name),
        },
        permutes_qk: true,
    }),
};

fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    let mut spec = granite::gguf_spec(config)?;
    let layers = spec.layers.len();
    // Which layers have windows has to be said.
    let required = |key: &str| Refusal::Missing(config.name(key));
    let window = config.window()?;
    let window = window.ok_or_else(|| required("attention.sliding_window"))?;
    let sliding = config.flags(WINDOW_PATTERN, layers)?;
    sliding.ok_or_else(|| required(WINDOW_PATTERN))?;
    config.put_windows(&mut spec, Some(window), FULL_INTERVAL)?;
    let rotating = config.flags(ROPE_PATTERN, layers)?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let attention = layer.attention_mut();
        attention.sinks = true;
        let has_rope = rotating.as_ref().is_none_or(|rotating| rotating[index]);
        attention.rope = attention.rope.filter(|_| has_rope);
    }
    if config.size("expert_count")?.unwrap_or(0) > 0 {
        let mut experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
        experts.shared = config.shared_experts(0, experts.intermediate)?;
        put_experts(&mut spec, &experts, |_| true);
    }
    Ok(spec)
}

/// Windows, sinks, and a RoPE for each base; also Granite-MoE's.
pub(super) fn put_layers(
    config: &HfConfig,
    defaults: &HfDefaults,
    spec: &mut ModelSpec,
) -> Result<(), Refusal> {
    let is_sliding = |layer| layer % FULL_INTERVAL != 0;
    config.put_windows(spec, WindowRule::Always, is_sliding)?;
    for layer in &mut spec.layers {
        layer.attention_mut().sinks = true;
    }
    let Some(bases) = config.numbers(BASES)? else {
        return Ok(());
    };
    if bases.len() != spec.layers.len() {
        let expected = format!("one base for each of {} layers", spec.layers.len());
        return Err(Refusal::invalid(BASES, bases.len(), expected));
    }
    let head_dim = spec.heads().head_dim;
    let mut distinct: Vec<f64> = bases.iter().copied().filter(|base| *base != 0.0).collect();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    let ropes = distinct.iter();
    let ropes = ropes.map(|base| config.rope_with_base(defaults, head_dim, *base));
    spec.ropes = ropes.collect::<Result<_, _>>()?;
    for (layer, base) in spec.layers.iter_mut().zip(&bases) {
        layer.attention_mut().rope = distinct.iter().position(|of| of == base);
    }
    Ok(())
}
