//! Apertus: RMSNorm on every Q and K head, an MLP without gates, of xIELU.

use ebb_kernels::model::{Activation, LayerTensor, QkNorm, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf, put_plain_mlp};
use crate::model::error::Refusal;
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "apertus",
    hf_class: "ApertusForCausalLM",
    hf_text: &[TextType {
        model_types: &["apertus"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 131072, "max_position_embeddings": 65536
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "rms_norm_eps": 1e-5, "hidden_act": "xielu",
            "rope_theta": 12000000.0,
            "rope_scaling": {
                "rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192
            }
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            has_plain_mlp: true,
            ..HfDefaults::default()
        };
        // transformers has no MLP with biases, and norms before parts and of heads alone.
        config.refuse("mlp_bias")?;
        config.refuse("post_norm")?;
        const NORM: &str = "qk_norm";
        if config.bool(NORM)? == Some(false) {
            return Err(Refusal::unsupported(NORM, false, "true"));
        }
        let mut model = config.uniform(&defaults)?;
        model.qk_norm = QkNorm::PerHead;
        let mut spec = model.spec();
        put_plain_mlp(&mut spec, false);
        Ok(spec)
    },
    hf_tensor: |name| {
        let (layer, part) = match name {
            TensorName::Layer(layer, LayerTensor::AttnNorm) => (layer, "attention_layernorm"),
            TensorName::Layer(layer, LayerTensor::MlpNorm) => (layer, "feedforward_layernorm"),
            _ => return llama_hf(name),
        };
        StoredTensor::own(name, format!("model.layers.{layer}.{part}.weight"))
    },
    gguf: Some(GgufFamily {
        architecture: "apertus",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform()?;
            model.activation = Activation::Xielu;
            model.qk_norm = QkNorm::PerHead;
            let mut spec = model.spec();
            put_plain_mlp(&mut spec, false);
            Ok(spec)
        },
        tensor: |name| {
            use LayerTensor as L;
            let key = match name {
                TensorName::Layer(_, L::XieluPositive) => "xielu.alpha_p",
                TensorName::Layer(_, L::XieluNegative) => "xielu.alpha_n",
                TensorName::Layer(_, L::XieluBeta) => "xielu.beta",
                TensorName::Layer(_, L::XieluEps) => "xielu.eps",
                _ => return llama_gguf(name),
            };
            StoredTensor::in_metadata(name, key)
        },
        permutes_qk: false,
    }),
};
