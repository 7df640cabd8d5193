//! Granite MoE with windows, sinks, and a RoPE of its own for each layer, or none. In GGUF files it
//! is of the `granite_swa` architecture.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::stored::GATE_UP;
use super::{Family, StoredTensor, TextType, granite_swa, granitemoeshared};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "granitemoe_swa",
    hf_class: "GraniteMoeSWAForCausalLM",
    hf_text: &[TextType {
        model_types: &["granitemoe_swa"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
            "num_local_experts": 8, "num_experts_per_tok": 2
        }"#,
        constants: r#"{"num_key_value_heads": null, "sliding_window": 128}"#,
    }],
    hf_spec: |config| {
        let mut spec = granitemoeshared::hf_spec(config)?;
        granite_swa::put_layers(config, &HfDefaults::default(), &mut spec)?;
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return granitemoeshared::hf_tensor(name);
        };
        let stored = |part: &str| format!("model.layers.{layer}.block_sparse_moe.{part}");
        match part {
            L::Router => StoredTensor::own(name, stored("router.weight")),
            L::ExpertGate | L::ExpertUp => {
                StoredTensor::by_expert(name, stored("experts.gate_up_proj"), GATE_UP)
            }
            L::ExpertDown => StoredTensor::own(name, stored("experts.down_proj")),
            _ => granitemoeshared::hf_tensor(name),
        }
    },
    gguf: None,
};
