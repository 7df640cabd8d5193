//! Ministral: Mistral with a window in some layers only. In GGUF files it is of the `llama`
//! architecture, which does not tell windows.

use super::{Family, TextType, llama_hf, mistral};

pub(super) static FAMILY: Family = Family {
    name: "ministral",
    hf_class: "MinistralForCausalLM",
    hf_text: &[TextType {
        model_types: &["ministral"],
        ..mistral::TEXT
    }],
    hf_spec: mistral::hf_spec,
    hf_tensor: llama_hf,
    gguf: None,
};
