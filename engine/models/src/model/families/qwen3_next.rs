//! Qwen3-Next: three of four layers follow the gated delta rule, the fourth has attention with a
//! gate behind it; experts everywhere, and one beside them that every token goes through.

use ebb_kernels::model::{
    GatedDeltaSpec, LayerTensor, Mixer, ModelSpec, OutputGate, QkNorm, RecurrentSpec, TensorName,
    UniformModel,
};

use super::qwen3_next_gguf::{EXPERT_KEYS, KEYS, gguf_spec, gguf_tensor, older, put_gguf_experts};
use super::{Family, GgufFamily, StoredTensor, TextType, llama_hf};
use crate::model::error::Refusal;
use crate::model::gguf::experts::EXPERTS;
use crate::model::hf::config::{HfConfig, HfDefaults, LINEAR};

/// One layer of so many has attention, unless the configuration says otherwise.
pub(super) const FULL_INTERVAL: usize = 4;

pub(super) const Q: &[LayerTensor] = &[LayerTensor::Q, LayerTensor::OutputGate];
pub(super) const QKVZ: &[LayerTensor] = &[
    LayerTensor::DeltaQ,
    LayerTensor::DeltaK,
    LayerTensor::DeltaV,
    LayerTensor::DeltaZ,
];
const BA: &[LayerTensor] = &[LayerTensor::DeltaB, LayerTensor::DeltaA];

pub(super) static FAMILY: Family = Family {
    name: "qwen3_next",
    hf_class: "Qwen3NextForCausalLM",
    hf_text: &[TextType {
        model_types: &["qwen3_next"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936,
            "max_position_embeddings": 32768, "num_experts": 512, "num_experts_per_tok": 10,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512
        }"#,
        constants: r#"{
            "head_dim": 256, "partial_rotary_factor": 0.25, "norm_topk_prob": true,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32
        }"#,
    }],
    hf_spec: |config| {
        let mut spec = hybrid(config)?;
        config.put_gated_experts(&mut spec)?;
        Ok(spec)
    },
    hf_tensor: |name| {
        let TensorName::Layer(layer, part) = name else {
            return gated_hf(name);
        };
        let stored = |part: &str| format!("model.layers.{layer}.linear_attn.{part}");
        match part {
            part if QKVZ.contains(&part) => {
                StoredTensor::by_head(name, stored("in_proj_qkvz.weight"), QKVZ)
            }
            part if BA.contains(&part) => {
                StoredTensor::by_head(name, stored("in_proj_ba.weight"), BA)
            }
            _ => gated_hf(name),
        }
    },
    gguf: Some(GgufFamily {
        architecture: "qwen3next",
        keys: &[KEYS, EXPERTS, EXPERT_KEYS],
        spec: |config| {
            let mut spec = gguf_spec(config)?;
            put_gguf_experts(config, &mut spec)?;
            Ok(spec)
        },
        tensor: |name| match name {
            TensorName::Layer(layer, part) if BA.contains(&part) => {
                StoredTensor::by_head(name, format!("blk.{layer}.ssm_ba.weight"), BA)
            }
            _ => gguf_tensor(name).or(older(name)),
        },
        permutes_qk: false,
    }),
};

/// Layers of the delta rule between layers of gated attention, norms whose weights count from 1.
pub(super) fn hybrid(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    let defaults = HfDefaults {
        rotates_part_of_a_head: true,
        ..HfDefaults::default()
    };
    if config.bool("attn_output_gate")? == Some(false) {
        return Err(Refusal::unsupported("attn_output_gate", false, "true"));
    }
    let mut model = config.uniform(&defaults)?;
    // Convolutions have the same.
    config.refuse_all_but_silu("silu")?;
    model.qk_norm = QkNorm::PerHead;
    let delta = GatedDeltaSpec {
        k_heads: config.required_size("linear_num_key_heads")?,
        v_heads: config.required_size("linear_num_value_heads")?,
        k_dim: config.required_size("linear_key_head_dim")?,
        v_dim: config.required_size("linear_value_head_dim")?,
        taps: config.required_size("linear_conv_kernel_dim")?,
        norm_eps: model.norm_eps,
        doubled: false,
    };
    let layers = model.layers;
    let interval = config.interval("full_attention_interval", FULL_INTERVAL)?;
    let by_interval = || (1..=layers).map(|layer| layer % interval == 0).collect();
    let attention = config.attention_layers(layers, &[LINEAR])?;
    let attention: Vec<_> = attention.unwrap_or_else(by_interval);
    Ok(spec(model, delta, &attention))
}

/// A model whose layers have gated attention or else the delta rule.
pub(super) fn spec(model: UniformModel, delta: GatedDeltaSpec, attention: &[bool]) -> ModelSpec {
    let mut spec = model.spec();
    spec.norms.from_one = true;
    for (layer, has_attention) in spec.layers.iter_mut().zip(attention) {
        match has_attention {
            true => layer.attention_mut().output_gate = Some(OutputGate::SIGMOIDS),
            false => layer.mixer = Mixer::Recurrent(RecurrentSpec::GatedDelta(delta)),
        }
    }
    spec
}

/// Names of checkpoints whose queries lie beside what opens attention's output.
pub(super) fn gated_hf(name: TensorName) -> StoredTensor {
    match name {
        TensorName::Layer(layer, part) if Q.contains(&part) => {
            let stored = format!("model.layers.{layer}.self_attn.q_proj.weight");
            StoredTensor::by_head(name, stored, Q)
        }
        _ => llama_hf(name),
    }
}
