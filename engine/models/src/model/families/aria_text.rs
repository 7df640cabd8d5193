//! Aria, the language model: Llama with experts, stored stacked and transposed, and shared ones
//! beside them.

use ebb_kernels::model::{LayerTensor, Routing, TensorName};

use super::stored::GATE_UP;
use super::{Family, StoredTensor, TextType, glm4_moe};
use crate::model::experts::put_experts;
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "aria_text",
    hf_class: "AriaTextForCausalLM",
    hf_text: &[TextType {
        model_types: &["aria_text"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
            "moe_num_experts": 8, "moe_topk": 2
        }"#,
        constants: r#"{"num_key_value_heads": null, "moe_num_shared_experts": 2}"#,
    }],
    hf_spec: |config| {
        let mut spec = config.uniform(&HfDefaults::default())?.spec();
        let mut experts = config.experts("intermediate_size", Routing::SOFTMAX_OF_CHOSEN)?;
        experts.shared = config.shared_experts("moe_num_shared_experts", experts.intermediate)?;
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return glm4_moe::hf_tensor(name);
        };
        let stored = |part: &str| format!("model.layers.{layer}.mlp.{part}.weight");
        match part {
            L::Router => StoredTensor::own(name, stored("router")),
            L::ExpertGate | L::ExpertUp => {
                StoredTensor::by_columns(name, stored("experts.fc1"), GATE_UP)
            }
            L::ExpertDown => {
                StoredTensor::by_columns(name, stored("experts.fc2"), &[L::ExpertDown])
            }
            _ => glm4_moe::hf_tensor(name),
        }
    },
    gguf: None,
};
