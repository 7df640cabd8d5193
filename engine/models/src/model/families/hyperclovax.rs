//! HyperCLOVA X: Granite whose logits are multiplied, not divided, and with norms behind attention
//! and MLP, too.

use ebb_kernels::model::{AttentionSpec, LayerTensor, NormPlace, TensorName};

use super::{Family, StoredTensor, TextType, granite, llama_hf};

pub(super) static FAMILY: Family = Family {
    name: "hyperclovax",
    hf_class: "HyperCLOVAXForCausalLM",
    hf_text: &[TextType {
        model_types: &["hyperclovax"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048
        }"#,
        constants: r#"{"num_key_value_heads": null}"#,
    }],
    hf_spec: |config| {
        let mut spec = granite::hf_spec(config, "intermediate_size")?;
        spec.logit_multiplier = config.number("logits_scaling")?.unwrap_or(1.0) as f32;
        let has_post_norm = config.bool("use_post_norm")?.unwrap_or(true);
        let has_scale = config.says("attention_multiplier");
        for layer in &mut spec.layers {
            if has_post_norm {
                (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
            }
            if !has_scale {
                let attention = layer.attention_mut();
                attention.scale = AttentionSpec::default_scale(attention.head_dim);
            }
        }
        Ok(spec)
    },
    hf_tensor: |name| {
        let (layer, part) = match name {
            TensorName::Layer(layer, LayerTensor::AttnPostNorm) => (layer, "post_norm1"),
            TensorName::Layer(layer, LayerTensor::MlpPostNorm) => (layer, "post_norm2"),
            _ => return llama_hf(name),
        };
        StoredTensor::own(name, format!("model.layers.{layer}.{part}.weight"))
    },
    gguf: None,
};
