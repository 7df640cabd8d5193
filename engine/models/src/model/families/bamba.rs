//! Bamba: Mamba-2 between layers of attention, each with a dense MLP.

use ebb_kernels::model::{LayerTensor, RecurrentSpec, TensorName};

use super::{Family, StoredTensor, TextType, llama_hf, mamba, put_recurrent};
use crate::model::hf::config::{ATTENTION, HfDefaults, LINEAR};

pub(super) static FAMILY: Family = Family {
    name: "bamba",
    hf_class: "BambaForCausalLM",
    hf_text: &[TextType {
        model_types: &["bamba"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128000,
            "max_position_embeddings": 262144
        }"#,
        constants: r#"{"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            rotates_part_of_a_head: true,
            ..HfDefaults::default()
        };
        let model = config.uniform(&defaults)?;
        let mamba = mamba::hf_spec(config, model.hidden, model.norm_eps)?;
        let mut spec = model.spec();
        let layers = spec.layers.len();
        let indices = config.sizes("attn_layer_indices")?.unwrap_or_default();
        let by_indices = || (0..layers).map(|layer| indices.contains(&layer)).collect();
        let attention = config.attention_layers(layers, &[LINEAR, "mamba", ATTENTION])?;
        let attention: Vec<_> = attention.unwrap_or_else(by_indices);
        put_recurrent(&mut spec, RecurrentSpec::Mamba2(mamba), &attention);
        Ok(spec)
    },
    hf_tensor,
    gguf: None,
};

fn hf_tensor(name: TensorName) -> StoredTensor {
    use LayerTensor as L;
    let TensorName::Layer(layer, part) = name else {
        return match name {
            TensorName::FinalNorm => StoredTensor::own(name, "model.final_layernorm.weight"),
            _ => llama_hf(name),
        };
    };
    let part = match part {
        L::MlpNorm => "pre_ff_layernorm",
        L::Gate => "feed_forward.gate_proj",
        L::Up => "feed_forward.up_proj",
        L::Down => "feed_forward.down_proj",
        _ => {
            let mamba = mamba::hf_tensor(name, &format!("model.layers.{layer}.mamba"));
            return mamba.unwrap_or_else(|| llama_hf(name));
        }
    };
    StoredTensor::own(name, format!("model.layers.{layer}.{part}.weight"))
}
