//! GLM-4 of 2024 (GLM-4-9B): biases on Q, K and V, half of each head rotates, in pairs of
//! neighbouring channels; gate and up stored as one tensor.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::{Family, StoredTensor, TextType, glm4, llama_hf};

const GATE_UP: &[LayerTensor] = &[LayerTensor::Gate, LayerTensor::Up];

pub(super) static FAMILY: Family = Family {
    name: "glm",
    hf_class: "GlmForCausalLM",
    hf_text: &[TextType {
        model_types: &["glm"],
        ..glm4::TEXT
    }],
    hf_spec: |config| Ok(glm4::hf_model(config)?.spec()),
    hf_tensor: |name| match name {
        TensorName::Layer(layer, part) if GATE_UP.contains(&part) => {
            let stored = format!("model.layers.{layer}.mlp.gate_up_proj.weight");
            StoredTensor::part(name, stored, GATE_UP)
        }
        _ => llama_hf(name).interleaved(),
    },
    gguf: None,
};
