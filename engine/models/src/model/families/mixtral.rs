//! Mixtral: Mistral with experts. In GGUF files it is of the `llama` architecture.

use ebb_kernels::model::{LayerTensor, Routing, TensorName};

use super::{Family, StoredTensor, TextType, llama_hf};
use crate::model::experts::put_experts;
use crate::model::hf::config::{HfDefaults, WindowRule};

pub(super) static FAMILY: Family = Family {
    name: "mixtral",
    hf_class: "MixtralForCausalLM",
    hf_text: &[TextType {
        model_types: &["mixtral"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
            "max_position_embeddings": 131072, "num_local_experts": 8, "num_experts_per_tok": 2
        }"#,
        constants: r#"{"rms_norm_eps": 1e-5, "rope_theta": 1000000.0}"#,
    }],
    hf_spec: |config| {
        let mut spec = config.uniform(&HfDefaults::default())?.spec();
        config.put_windows(&mut spec, WindowRule::Always, |_| true)?;
        let experts = config.experts("intermediate_size", Routing::SOFTMAX_OF_CHOSEN)?;
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor,
    gguf: None,
};

/// Also Phi-MoE's.
pub(super) fn hf_tensor(name: TensorName) -> StoredTensor {
    let TensorName::Layer(layer, part) = name else {
        return llama_hf(name);
    };
    let module = format!("model.layers.{layer}.block_sparse_moe");
    match part {
        LayerTensor::Router => StoredTensor::own(name, format!("{module}.gate.weight")),
        LayerTensor::ExpertGate | LayerTensor::ExpertUp | LayerTensor::ExpertDown => {
            let which = match part {
                LayerTensor::ExpertGate => "w1",
                LayerTensor::ExpertUp => "w3",
                _ => "w2",
            };
            StoredTensor::of_each_expert(name, format!("{module}.experts.*.{which}.weight"))
        }
        _ => llama_hf(name),
    }
}
