//! Qwen3: RMSNorm on every Q and K head.

use ebb_kernels::model::QkNorm;

use super::{Family, GgufFamily, llama_gguf, llama_hf};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "qwen3",
    hf_class: "Qwen3ForCausalLM",
    hf_spec: |config| {
        let defaults = HfDefaults {
            head_dim: Some(128),
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qk_norm = QkNorm::PerHead;
        Ok(model.spec())
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
