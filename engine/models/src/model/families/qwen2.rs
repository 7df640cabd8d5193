//! Qwen2 and Qwen2.5: biases on Q, K and V, without the configuration saying so.

use super::{Family, GgufFamily, llama_gguf, llama_hf};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "qwen2",
    hf_class: "Qwen2ForCausalLM",
    hf_text_types: &["qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
    hf_text_defaults: r#"{
        "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936,
        "max_position_embeddings": 32768
    }"#,
    hf_spec: |config| {
        let defaults = HfDefaults {
            ignores_attention_bias: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = true;
        Ok(model.spec())
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "qwen2",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qkv_bias = true;
            Ok(model.spec())
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
