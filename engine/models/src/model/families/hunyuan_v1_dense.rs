//! HunYuan (dense): Llama with RMSNorm on every Q and K head, behind RoPE.

use ebb_kernels::model::{LayerTensor, QkNorm, TensorName, UniformModel};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults, RopeScalings};

pub(super) static FAMILY: Family = Family {
    name: "hunyuan_v1_dense",
    hf_class: "HunYuanDenseV1ForCausalLM",
    hf_text: &[TextType {
        model_types: &["hunyuan_v1_dense"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 290943, "max_position_embeddings": 2048
        }"#,
        constants: r#"{"num_key_value_heads": null, "rms_norm_eps": 1e-5}"#,
    }],
    hf_spec: |config| Ok(model(config)?.spec()),
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "hunyuan-dense",
        keys: &[],
        spec: |config| {
            // What `alpha` makes of the base, converters write.
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHeadBehindRope;
            Ok(model.spec())
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

/// What the layers of those with experts have, too.
pub(super) fn model(config: &HfConfig) -> Result<UniformModel, Refusal> {
    let defaults = HfDefaults {
        attention_bias: AttentionBias::OfAll,
        rope_scalings: RopeScalings::WithAlpha,
        ..HfDefaults::default()
    };
    // Layers that share keys and values.
    config.refuse("use_cla")?;
    const NORM: &str = "use_qk_norm";
    if config.bool(NORM)? == Some(false) {
        return Err(Refusal::unsupported(NORM, false, "true"));
    }
    let mut model = config.uniform(&defaults)?;
    model.qk_norm = QkNorm::PerHeadBehindRope;
    Ok(model)
}

pub(super) fn hf_tensor(name: TensorName) -> StoredTensor {
    let (layer, part) = match name {
        TensorName::Layer(layer, LayerTensor::QNorm) => (layer, "query_layernorm"),
        TensorName::Layer(layer, LayerTensor::KNorm) => (layer, "key_layernorm"),
        _ => return llama_hf(name),
    };
    StoredTensor::own(
        name,
        format!("model.layers.{layer}.self_attn.{part}.weight"),
    )
}
