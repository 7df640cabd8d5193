//! Qwen2 and Qwen2.5: biases on Q, K and V, without the configuration saying so.

use ebb_kernels::model::ModelSpec;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults, WindowRule};

pub(super) static FAMILY: Family = Family {
    name: "qwen2",
    hf_class: "Qwen2ForCausalLM",
    hf_text: &[
        TextType {
            model_types: &["qwen2"],
            sizes: r#"{
                "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936,
                "max_position_embeddings": 32768
            }"#,
            constants: r#"{"sliding_window": 4096}"#,
        },
        TextType {
            model_types: &["qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
            sizes: r#"{
                "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
                "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064,
                "max_position_embeddings": 32768
            }"#,
            constants: r#"{
                "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": 4096,
                "max_window_layers": 80
            }"#,
        },
    ],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = true;
        let mut spec = model.spec();
        put_windows(config, &mut spec)?;
        Ok(spec)
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

/// Windows, where they are switched on: not in the first layers. Also Qwen3's.
pub(super) fn put_windows(config: &HfConfig, spec: &mut ModelSpec) -> Result<(), Refusal> {
    let without = config.size("max_window_layers")?.unwrap_or(28);
    config.put_windows(spec, WindowRule::IfFlagged, |layer| layer >= without)
}
