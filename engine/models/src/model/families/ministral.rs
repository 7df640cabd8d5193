//! Ministral: Mistral with a window in some layers only.

use super::{Family, TextType, llama_hf};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "ministral",
    hf_class: "MinistralForCausalLM",
    hf_text: &[TextType {
        model_types: &["ministral"],
        defaults: r#"{
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
            "max_position_embeddings": 131072, "sliding_window": 4096
        }"#,
    }],
    hf_spec: |config| Ok(config.uniform(&HfDefaults::default())?.spec()),
    hf_tensor: llama_hf,
    gguf: None,
};
