//! Mistral. In GGUF files it is of the `llama` architecture, which does not tell its windows, or of
//! `mistral3`: Mistral Small 3, and Ministral 3 as far as its queries do not grow with their
//! positions.

use ebb_kernels::model::ModelSpec;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::{HfConfig, HfDefaults, WindowRule};

/// The key of how fast queries grow: by `1 + scale · ln(1 + floor(position / original context))`,
/// which is 1 in the first of these contexts.
const TEMPERATURE: &str = "attention.temperature_scale";

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
    gguf: Some(GgufFamily {
        architecture: "mistral3",
        keys: &[&[TEMPERATURE]],
        spec: |config| {
            let mut spec = config.uniform()?.spec();
            if config.number(TEMPERATURE)?.unwrap_or(0.0) != 0.0 {
                let first = config.required_size("rope.scaling.original_context_length")?;
                let reason = "queries that grow with their positions \
                              (`attention.temperature_scale`) are not computed";
                config.limit_context(&mut spec, first, reason);
            }
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: true,
    }),
};

/// Also Ministral's.
pub(super) fn hf_spec(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    let mut spec = config.uniform(&HfDefaults::default())?.spec();
    config.put_windows(&mut spec, WindowRule::Always, |_| true)?;
    Ok(spec)
}
