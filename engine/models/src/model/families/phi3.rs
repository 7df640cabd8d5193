//! Phi-3, Phi-3.5 and Phi-4: Q, K and V stored as one tensor, gate and up as another; RoPE over a
//! part of each head in some, with other frequencies for long contexts in others.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::hf::config::{HfDefaults, RopeScalings, WindowRule};

const QKV: &[LayerTensor] = &[LayerTensor::Q, LayerTensor::K, LayerTensor::V];
const GATE_UP: &[LayerTensor] = &[LayerTensor::Gate, LayerTensor::Up];

pub(super) static FAMILY: Family = Family {
    name: "phi3",
    hf_class: "Phi3ForCausalLM",
    hf_text: &[TextType {
        model_types: &["phi3"],
        sizes: r#"{
            "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32064, "max_position_embeddings": 4096
        }"#,
        constants: r#"{"num_key_value_heads": null, "rms_norm_eps": 1e-5}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            rotates_part_of_a_head: true,
            rope_scalings: RopeScalings::WithLong,
            ..HfDefaults::default()
        };
        let mut spec = config.uniform(&defaults)?.spec();
        config.put_windows(&mut spec, WindowRule::Always, |_| true)?;
        Ok(spec)
    },
    hf_tensor: |name| match name {
        TensorName::Layer(layer, part) if QKV.contains(&part) => {
            let stored = format!("model.layers.{layer}.self_attn.qkv_proj.weight");
            StoredTensor::part(name, stored, QKV)
        }
        TensorName::Layer(layer, part) if GATE_UP.contains(&part) => {
            let stored = format!("model.layers.{layer}.mlp.gate_up_proj.weight");
            StoredTensor::part(name, stored, GATE_UP)
        }
        _ => llama_hf(name),
    },
    gguf: Some(GgufFamily {
        architecture: "phi3",
        keys: &[&["rope.scaling.attn_factor"]],
        spec: |config| Ok(config.uniform_with_part(true)?.spec()),
        tensor: |name| match name {
            TensorName::Layer(layer, part) if QKV.contains(&part) => {
                StoredTensor::part(name, format!("blk.{layer}.attn_qkv.weight"), QKV)
            }
            TensorName::Layer(layer, part) if GATE_UP.contains(&part) => {
                StoredTensor::part(name, format!("blk.{layer}.ffn_up.weight"), GATE_UP)
            }
            _ => llama_gguf(name),
        },
        permutes_qk: false,
    }),
};
