//! Qwen3.5 and Qwen3.6, the language model: Qwen3-Next with dense MLPs.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::qwen3_next_gguf::{KEYS, gguf_spec, gguf_tensor};
use super::{Family, GgufFamily, StoredTensor, TextType, qwen3_next};

const QKV: &[LayerTensor] = &[
    LayerTensor::DeltaQ,
    LayerTensor::DeltaK,
    LayerTensor::DeltaV,
];

pub(super) static FAMILY: Family = Family {
    name: "qwen3_5_text",
    hf_class: "Qwen3_5ForCausalLM",
    hf_text: &[TextType {
        model_types: &["qwen3_5_text"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
            "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 248320,
            "max_position_embeddings": 32768
        }"#,
        constants: r#"{
            "head_dim": 256, "partial_rotary_factor": 0.25,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32
        }"#,
    }],
    hf_spec: qwen3_next::hybrid,
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "qwen35",
        keys: &[KEYS],
        spec: gguf_spec,
        // Converters put value heads in turn, as llama.cpp repeats heads of keys.
        tensor: |name| gguf_tensor(name).heads_in_turn(),
        permutes_qk: false,
    }),
};

pub(super) fn hf_tensor(name: TensorName) -> StoredTensor {
    match name {
        TensorName::Layer(layer, part) if QKV.contains(&part) => {
            let stored = format!("model.layers.{layer}.linear_attn.in_proj_qkv.weight");
            StoredTensor::part(name, stored, QKV)
        }
        _ => qwen3_next::gated_hf(name),
    }
}
