//! OLMo (1): Llama with LayerNorm that has no weights.

use ebb_kernels::model::{NormKind, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::gguf::config::LAYER_NORM_EPS;
use crate::model::hf::config::HfDefaults;

/// Of every norm; no configuration has another.
const NORM_EPS: f32 = 1e-5;

pub(super) static FAMILY: Family = Family {
    name: "olmo",
    hf_class: "OlmoForCausalLM",
    hf_text: &[TextType {
        model_types: &["olmo"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 50304, "max_position_embeddings": 2048
        }"#,
        constants: r#"{"num_key_value_heads": null}"#,
    }],
    hf_spec: |config| {
        config.refuse("clip_qkv")?;
        let mut model = config.uniform(&HfDefaults::default())?;
        model.norm_eps = NORM_EPS;
        let mut spec = model.spec();
        spec.norms.kind = NormKind::Layer;
        Ok(spec)
    },
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "olmo",
        keys: &[&[LAYER_NORM_EPS]],
        spec: |config| {
            let mut spec = config.uniform()?.spec();
            spec.norms.kind = NormKind::Layer;
            Ok(spec)
        },
        tensor: |name| match name.is_norm() {
            true => StoredTensor::ones(name),
            false => llama_gguf(name),
        },
        permutes_qk: true,
    }),
};

fn hf_tensor(name: TensorName) -> StoredTensor {
    match name.is_norm() {
        true => StoredTensor::ones(name),
        false => llama_hf(name),
    }
}
