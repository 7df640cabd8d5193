//! Mistral. In GGUF files it is of the `llama` architecture.

use super::{Family, llama_hf};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "mistral",
    hf_class: "MistralForCausalLM",
    hf_spec: |config| Ok(config.uniform(&HfDefaults::default())?.spec()),
    hf_tensor: llama_hf,
    gguf: None,
};
