//! Mistral. In GGUF files it is of the `llama` architecture.

use ebb_kernels::model::ModelSpec;

use super::{Family, TextType, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::{HfConfig, HfDefaults, WindowRule};

/// Also Ministral's, but for its name.
pub(super) const TEXT: TextType = TextType {
    model_types: &["mistral"],
    sizes: r#"{
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 131072
    }"#,
    constants: r#"{"sliding_window": 4096}"#,
};

pub(super) static FAMILY: Family = Family {
    name: "mistral",
    hf_class: "MistralForCausalLM",
    hf_text: &[TEXT],
    hf_spec,
    hf_tensor: llama_hf,
    gguf: None,
};

/// Also Ministral's.
pub(super) fn hf_spec(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    let mut spec = config.uniform(&HfDefaults::default())?.spec();
    config.put_windows(&mut spec, WindowRule::Always, |_| true)?;
    Ok(spec)
}
