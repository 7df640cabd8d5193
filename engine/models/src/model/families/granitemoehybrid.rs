//! Granite 4: Granite whose MLPs, or shared experts, are stored with gate and up in one, that may
//! do without RoPE, and that may have Mamba-2 in place of attention.

use ebb_kernels::model::{LayerTensor, ModelSpec, RecurrentSpec, TensorName};

use super::granite::MULTIPLIERS;
use super::{
    Family, GgufFamily, StoredTensor, TextType, granite, granitemoe, granitemoeshared, mamba,
    put_recurrent,
};
use crate::model::error::Refusal;
use crate::model::gguf::config::{GgufConfig, HAS_ROPE};
use crate::model::gguf::experts::{EXPERTS as EXPERT_KEYS, SHARED_WIDTH};
use crate::model::hf::config::{ATTENTION, LINEAR};

const EXPERTS: &str = "num_local_experts";
const GATE_UP: &[LayerTensor] = &[LayerTensor::Gate, LayerTensor::Up];

pub(super) static FAMILY: Family = Family {
    name: "granitemoehybrid",
    hf_class: "GraniteMoeHybridForCausalLM",
    hf_text: &[TextType {
        model_types: &["granitemoehybrid"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
            "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "num_local_experts": 8, "num_experts_per_tok": 2,
            "shared_intermediate_size": 1024
        }"#,
    }],
    hf_spec: |config| {
        let mut spec = match config.size(EXPERTS)?.unwrap_or(0) {
            0 => granite::hf_spec(config, "shared_intermediate_size")?,
            _ => granitemoeshared::hf_spec(config)?,
        };
        const ROPE: &str = "position_embedding_type";
        match config.text(ROPE)? {
            Some("rope") => {}
            None | Some("nope") => {
                for layer in &mut spec.layers {
                    layer.attention_mut().rope = None;
                }
            }
            Some(other) => {
                let found = format!("{other:?}");
                return Err(Refusal::unsupported(ROPE, found, "rope, nope"));
            }
        }
        let layers = spec.layers.len();
        let attention = config.attention_layers(layers, &[LINEAR, "mamba", ATTENTION])?;
        // Without the field no layer has attention.
        let attention = attention.unwrap_or_else(|| vec![false; layers]);
        if attention.contains(&false) {
            let mamba = mamba::hf_spec(config, spec.hidden, spec.norm_eps)?;
            put_recurrent(&mut spec, RecurrentSpec::Mamba2(mamba), &attention);
        }
        Ok(spec)
    },
    hf_tensor: |name| {
        let TensorName::Layer(layer, part) = name else {
            return granitemoeshared::hf_tensor(name);
        };
        let stored = |part: &str| format!("model.layers.{layer}.shared_mlp.{part}.weight");
        match part {
            part if GATE_UP.contains(&part) => {
                StoredTensor::part(name, stored("input_linear"), GATE_UP)
            }
            LayerTensor::Down => StoredTensor::own(name, stored("output_linear")),
            _ => {
                let mamba = mamba::hf_tensor(name, &format!("model.layers.{layer}.mamba"));
                mamba.unwrap_or_else(|| granitemoeshared::hf_tensor(name))
            }
        }
    },
    gguf: Some(GgufFamily {
        architecture: "granitehybrid",
        keys: &[EXPERT_KEYS, MULTIPLIERS, mamba::GGUF_KEYS, &[SHARED_WIDTH]],
        spec: gguf_spec,
        tensor: mamba::gguf_tensor,
        permutes_qk: true,
    }),
};

/// Layers without heads of keys have Mamba-2. Converters make files of Granite 4 with attention
/// alone ones of `granite` or `granitemoe`.
fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    let mut spec = granite::gguf_layers(config)?;
    if config.bool(HAS_ROPE)? == Some(false) {
        for layer in &mut spec.layers {
            layer.attention_mut().rope = None;
        }
    }
    if config.size("expert_count")?.unwrap_or(0) > 0 {
        granitemoe::put_gguf_experts(config, &mut spec)?;
    }
    let attention = config.layers_with_keys(spec.layers.len())?;
    if let Some(first) = attention.iter().position(|has_attention| !has_attention) {
        // The norm's weights lie by group, but it is of all channels, as in Hugging Face's form.
        let mamba = mamba::gguf_spec(config, first, spec.norm_eps)?;
        put_recurrent(&mut spec, RecurrentSpec::Mamba2(mamba), &attention);
    }
    Ok(spec)
}
