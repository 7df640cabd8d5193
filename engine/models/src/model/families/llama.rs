//! Llama 2 and 3.x, and everything published as one (SmolLM2, TinyLlama …). GGUF files of its
//! architecture may be Mixtral's: they have experts.

use ebb_kernels::model::Routing;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::experts::put_experts;
use crate::model::gguf::experts::EXPERTS;
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "llama",
    hf_class: "LlamaForCausalLM",
    hf_text: &[TextType {
        model_types: &["llama"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048
        }"#,
        constants: r#"{"num_key_value_heads": null}"#,
    }],
    hf_spec: |config| Ok(config.uniform(&HfDefaults::default())?.spec()),
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "llama",
        keys: &[EXPERTS],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            let mut spec = model.spec();
            if config.size("expert_count")?.unwrap_or(0) > 0 {
                let experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
                put_experts(&mut spec, &experts, |_| true);
            }
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: true,
    }),
};
