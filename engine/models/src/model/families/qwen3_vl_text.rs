//! Qwen3-VL, the language model: Qwen3.

use ebb_kernels::model::QkNorm;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::gguf::config::ROPE_SECTIONS;
use crate::model::hf::config::HfDefaults;

/// What files say of the images that they leave to others: how positions in time and space share
/// heads, which are the same number for each token of a text, and what images add to some layers.
pub(super) const IMAGES: &[&str] = &[ROPE_SECTIONS, "n_deepstack_layers"];

pub(super) static FAMILY: Family = Family {
    name: "qwen3_vl_text",
    hf_class: "Qwen3VLForConditionalGeneration",
    hf_text: &[TextType {
        model_types: &["qwen3_vl_text"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936,
            "max_position_embeddings": 128000
        }"#,
        constants: r#"{"head_dim": 128, "rope_theta": 500000.0}"#,
    }],
    hf_spec: |config| {
        let mut model = config.uniform(&HfDefaults::default())?;
        model.qk_norm = QkNorm::PerHead;
        Ok(model.spec())
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "qwen3vl",
        keys: &[IMAGES],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHead;
            Ok(model.spec())
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
