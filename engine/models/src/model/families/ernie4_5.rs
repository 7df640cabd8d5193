//! ERNIE 4.5 (dense): Llama whose RoPE rotates pairs of neighbouring channels.

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "ernie4_5",
    hf_class: "Ernie4_5ForCausalLM",
    hf_text: &[TextType {
        model_types: &["ernie4_5"],
        sizes: r#"{
            "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
            "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 103424,
            "max_position_embeddings": 131072
        }"#,
        constants: r#"{
            "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "tie_word_embeddings": true
        }"#,
    }],
    hf_spec: |config| {
        config.refuse("use_bias")?;
        // What positions are divided by in the files' own code.
        const RATIO: &str = "compression_ratio";
        if let Some(ratio) = config.number(RATIO)?
            && ratio != 1.0
        {
            return Err(Refusal::unsupported(RATIO, ratio, "1"));
        }
        Ok(config.uniform(&HfDefaults::default())?.spec())
    },
    hf_tensor: |name| llama_hf(name).interleaved(),
    gguf: Some(GgufFamily {
        architecture: "ernie4_5",
        keys: &[],
        spec: |config| Ok(config.uniform()?.spec()),
        tensor: llama_gguf,
        // They are interleaved as they are in transformers.
        permutes_qk: true,
    }),
};
