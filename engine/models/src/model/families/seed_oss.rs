//! Seed-OSS: Llama with biases on Q, K and V.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "seed_oss",
    hf_class: "SeedOssForCausalLM",
    hf_text: &[TextType {
        model_types: &["seed_oss"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers": 64,
            "num_attention_heads": 80, "num_key_value_heads": 8, "vocab_size": 155136,
            "max_position_embeddings": 524288
        }"#,
        constants: r#"{"head_dim": 128}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")?.unwrap_or(true);
        model.o_bias = config.bool("attention_out_bias")?.unwrap_or(false);
        Ok(model.spec())
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "seed_oss",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            model.o_bias = config.has_tensor("blk.0.attn_output.bias");
            Ok(model.spec())
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
