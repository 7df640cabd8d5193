//! Llama 2 and 3.x, and everything published as one (SmolLM2, TinyLlama …).

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "llama",
    hf_class: "LlamaForCausalLM",
    hf_text: &[TextType {
        model_types: &["llama"],
        defaults: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            kv_heads_are_query_heads: true,
            ..HfDefaults::default()
        };
        Ok(config.uniform(&defaults)?.spec())
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "llama",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            Ok(model.spec())
        },
        tensor: llama_gguf,
        permutes_qk: true,
    }),
};
