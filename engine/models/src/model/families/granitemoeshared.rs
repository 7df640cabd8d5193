//! Granite MoE with a shared expert, which is stored with gate and up in one. In GGUF files it is
//! of the `granitemoe` architecture.

use ebb_kernels::model::{LayerTensor, ModelSpec, SharedExpert, TensorName};

use super::{Family, StoredTensor, TextType, granitemoe};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::hf::config::HfConfig;

const SHARED_GATE_UP: &[LayerTensor] = &[LayerTensor::SharedGate, LayerTensor::SharedUp];

pub(super) static FAMILY: Family = Family {
    name: "granitemoeshared",
    hf_class: "GraniteMoeSharedForCausalLM",
    hf_text: &[TextType {
        model_types: &["granitemoeshared"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
            "num_local_experts": 8, "num_experts_per_tok": 2
        }"#,
        constants: r#"{"num_key_value_heads": null}"#,
    }],
    hf_spec,
    hf_tensor,
    gguf: None,
};

/// Also that of Granite MoE with windows, without them.
pub(super) fn hf_spec(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    let (mut spec, mut experts) = granitemoe::hf_layers(config)?;
    let shared = config.size("shared_intermediate_size")?.unwrap_or(0);
    experts.shared = (shared > 0).then_some(SharedExpert {
        intermediate: shared,
        gated: false,
    });
    put_experts(&mut spec, &experts, |_| true);
    Ok(spec)
}

pub(super) fn hf_tensor(name: TensorName) -> StoredTensor {
    use LayerTensor as L;
    let TensorName::Layer(layer, part) = name else {
        return granitemoe::hf_tensor(name);
    };
    let stored = |part: &str| format!("model.layers.{layer}.shared_mlp.{part}.weight");
    match part {
        L::SharedGate | L::SharedUp => {
            StoredTensor::part(name, stored("input_linear"), SHARED_GATE_UP)
        }
        L::SharedDown => StoredTensor::own(name, stored("output_linear")),
        _ => granitemoe::hf_tensor(name),
    }
}
