//! Code World Model: Llama with windows in three of four layers.

use super::{Family, TextType, llama_hf};
use crate::model::hf::config::{HfDefaults, WindowRule};

/// The first layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "cwm",
    hf_class: "CwmForCausalLM",
    hf_text: &[TextType {
        model_types: &["cwm"],
        sizes: r#"{
            "hidden_size": 6144, "intermediate_size": 21504, "num_hidden_layers": 64,
            "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 128256,
            "max_position_embeddings": 131072
        }"#,
        constants: r#"{
            "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
            "sliding_window": 8192, "rope_scaling": {
                "rope_type": "llama3", "factor": 16.0, "high_freq_factor": 4.0,
                "low_freq_factor": 1.0, "original_max_position_embeddings": 8192
            }
        }"#,
    }],
    hf_spec: |config| {
        let mut spec = config.uniform(&HfDefaults::default())?.spec();
        let is_sliding = |layer| layer % FULL_INTERVAL != 0;
        config.put_windows(&mut spec, WindowRule::Always, is_sliding)?;
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: None,
};
