//! Granite 3 MoE: Granite with experts stored stacked, gate and up in one. GGUF files of its
//! architecture may be those of Granite MoE with a shared expert: they say how wide it is.

use ebb_kernels::model::{ExpertsSpec, LayerTensor, ModelSpec, Routing, TensorName};

use super::granite::{MULTIPLIERS, gguf_spec, put_multipliers};
use super::stored::GATE_UP;
use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf, mamba};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::GgufConfig;
use crate::model::gguf::experts::{EXPERTS, SHARED_WIDTH};
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "granitemoe",
    hf_class: "GraniteMoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["granitemoe"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
            "num_local_experts": 8, "num_experts_per_tok": 2
        }"#,
        constants: r#"{"num_key_value_heads": null}"#,
    }],
    hf_spec: |config| {
        let (mut spec, experts) = hf_layers(config)?;
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "granitemoe",
        keys: &[EXPERTS, MULTIPLIERS, mamba::GGUF_KEYS, &[SHARED_WIDTH]],
        spec: |config| {
            let mut spec = gguf_spec(config)?;
            put_gguf_experts(config, &mut spec)?;
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: true,
    }),
};

/// Puts experts into all layers, and a shared one if there is any.
pub(super) fn put_gguf_experts(
    config: &GgufConfig<'_>,
    spec: &mut ModelSpec,
) -> Result<(), Refusal> {
    let mut experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
    experts.shared = config.shared_experts(0, experts.intermediate)?;
    put_experts(spec, &experts, |_| true);
    Ok(())
}

/// The layers, and the experts that all of them have.
pub(super) fn hf_layers(config: &HfConfig) -> Result<(ModelSpec, ExpertsSpec), Refusal> {
    let defaults = HfDefaults {
        attention_bias: AttentionBias::OfAll,
        ..HfDefaults::default()
    };
    let model = config.uniform(&defaults)?;
    let mut spec = model.spec();
    put_multipliers(config, &mut spec)?;
    let experts = config.experts("intermediate_size", Routing::SOFTMAX_OF_CHOSEN)?;
    Ok((spec, experts))
}

pub(super) fn hf_tensor(name: TensorName) -> StoredTensor {
    use LayerTensor as L;
    let TensorName::Layer(layer, part) = name else {
        return llama_hf(name);
    };
    let stored = |part: &str| format!("model.layers.{layer}.block_sparse_moe.{part}.weight");
    match part {
        L::Router => StoredTensor::own(name, stored("router.layer")),
        L::ExpertGate | L::ExpertUp => {
            StoredTensor::by_expert(name, stored("input_linear"), GATE_UP)
        }
        L::ExpertDown => StoredTensor::own(name, stored("output_linear")),
        _ => llama_hf(name),
    }
}
