//! OLMoE: norms of whole Q and K projections, and experts whose weights are not renormalised.

use ebb_kernels::model::{QkNorm, Routing};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::experts::put_experts;
use crate::model::gguf::experts::EXPERTS;
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "olmoe",
    hf_class: "OlmoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["olmoe"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 16, "vocab_size": 50304, "max_position_embeddings": 4096,
            "num_experts": 64, "num_experts_per_tok": 8
        }"#,
        constants: r#"{"num_key_value_heads": null, "rms_norm_eps": 1e-5}"#,
    }],
    hf_spec: |config| {
        config.refuse("clip_qkv")?;
        let mut model = config.uniform(&HfDefaults::default())?;
        model.qk_norm = QkNorm::Whole;
        let mut spec = model.spec();
        let experts = config.experts("intermediate_size", config.softmax_routing()?)?;
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "olmoe",
        keys: &[EXPERTS],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::Whole;
            let mut spec = model.spec();
            // Files do not say it; no published model has others.
            let routing = Routing {
                renormalised: false,
                ..Routing::SOFTMAX_OF_CHOSEN
            };
            put_experts(&mut spec, &config.experts(0, routing)?, |_| true);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
