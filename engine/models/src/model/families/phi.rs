//! Phi-1, Phi-1.5 and Phi-2: LayerNorm, attention and an MLP without gates beside each other, RoPE
//! over a part of each head, and biases everywhere, of logits as well.

use ebb_kernels::model::{
    Activation, LayerTensor, ModelSpec, NormKind, NormPlace, TensorName, UniformModel,
};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf, put_plain_mlp};
use crate::model::gguf::config::LAYER_NORM_EPS;
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "phi",
    hf_class: "PhiForCausalLM",
    hf_text: &[TextType {
        model_types: &["phi"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
            "num_attention_heads": 32, "vocab_size": 51200, "max_position_embeddings": 2048
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new"
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            rotates_part_of_a_head: true,
            has_plain_mlp: true,
            ..HfDefaults::default()
        };
        // LayerNorm of heads.
        config.refuse("qk_layernorm")?;
        let mut model = config.uniform(&defaults)?;
        model.norm_eps = config.number("layer_norm_eps")?.unwrap_or(1e-5) as f32;
        Ok(spec(model))
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let (layer, part) = match name {
            TensorName::FinalNorm => {
                return StoredTensor::own(name, "model.final_layernorm.weight");
            }
            TensorName::FinalNormBias => {
                return StoredTensor::own(name, "model.final_layernorm.bias");
            }
            TensorName::Layer(layer, part) => (layer, part),
            _ => return llama_hf(name),
        };
        let part = match part {
            L::O => "self_attn.dense.weight",
            L::OBias => "self_attn.dense.bias",
            L::Up => "mlp.fc1.weight",
            L::UpBias => "mlp.fc1.bias",
            L::Down => "mlp.fc2.weight",
            L::DownBias => "mlp.fc2.bias",
            _ => return llama_hf(name),
        };
        StoredTensor::own(name, format!("model.layers.{layer}.{part}"))
    },
    gguf: Some(GgufFamily {
        architecture: "phi2",
        keys: &[&[LAYER_NORM_EPS]],
        spec: |config| {
            let mut model = config.uniform_with_part(false)?;
            model.activation = Activation::GeluTanh;
            Ok(spec(model))
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

fn spec(model: UniformModel) -> ModelSpec {
    let mut spec = UniformModel {
        qkv_bias: true,
        o_bias: true,
        ..model
    }
    .spec();
    spec.norms.kind = NormKind::Layer;
    spec.norms.bias = true;
    spec.lm_head_bias = true;
    put_plain_mlp(&mut spec, true);
    for layer in &mut spec.layers {
        layer.mlp_norm = NormPlace::Shared;
    }
    spec
}
