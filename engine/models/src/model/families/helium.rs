//! Helium: Llama whose RoPE rotates pairs of neighbouring channels.

use super::{Family, TextType, llama_hf};
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "helium",
    hf_class: "HeliumForCausalLM",
    hf_text: &[TextType {
        model_types: &["helium"],
        sizes: r#"{
            "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24,
            "num_attention_heads": 20, "num_key_value_heads": 20, "vocab_size": 48000,
            "max_position_embeddings": 4096
        }"#,
        constants: r#"{"head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 100000.0}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")? == Some(true);
        Ok(model.spec())
    },
    hf_tensor: |name| llama_hf(name).interleaved(),
    gguf: None,
};
