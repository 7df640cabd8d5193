//! FlexOlmo: OLMo 2 with experts, each of which was trained by itself.

use super::{Family, TextType, llama_hf, olmo2};
use crate::model::experts::put_experts;
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "flex_olmo",
    hf_class: "FlexOlmoForCausalLM",
    hf_text: &[TextType {
        model_types: &["flex_olmo"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 100352, "max_position_embeddings": 4096,
            "num_experts": 7, "num_experts_per_tok": 5
        }"#,
        constants: r#"{"num_key_value_heads": null, "rope_theta": 500000.0}"#,
    }],
    hf_spec: |config| {
        let mut spec = olmo2::spec(config.uniform(&HfDefaults::default())?);
        let experts = config.experts("intermediate_size", config.softmax_routing()?)?;
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: None,
};
