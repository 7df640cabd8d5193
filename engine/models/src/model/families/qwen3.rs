//! Qwen3: RMSNorm on every Q and K head.

use ebb_kernels::model::QkNorm;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf, qwen2};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "qwen3",
    hf_class: "Qwen3ForCausalLM",
    hf_text: &[TextType {
        model_types: &["qwen3"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936,
            "max_position_embeddings": 32768
        }"#,
        constants: r#"{"head_dim": 128, "sliding_window": 4096}"#,
    }],
    hf_spec: |config| {
        let mut model = config.uniform(&HfDefaults::default())?;
        model.qk_norm = QkNorm::PerHead;
        let mut spec = model.spec();
        qwen2::put_windows(config, &mut spec)?;
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "qwen3",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHead;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            Ok(model.spec())
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
