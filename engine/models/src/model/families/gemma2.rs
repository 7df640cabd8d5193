//! Gemma 2: norms around attention and MLP whose weights count from 1, GELU, capped scores and
//! logits, a window in every other layer.

use ebb_kernels::bf16;
use ebb_kernels::model::{Activation, LayerTensor, ModelSpec, NormPlace, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::gguf::config::{GgufConfig, WINDOW_PATTERN};
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults, RopeScalings, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 2;

/// Layers of Gemma 2 27B.
const GGUF_LAYERS_OF_27B: usize = 46;

/// Also VaultGemma's, but for its name.
pub(super) const TEXT: TextType = TextType {
    model_types: &["gemma2"],
    sizes: r#"{
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256000,
        "max_position_embeddings": 8192
    }"#,
    constants: r#"{"head_dim": 256, "tie_word_embeddings": true, "sliding_window": 4096}"#,
};

pub(super) static FAMILY: Family = Family {
    name: "gemma2",
    hf_class: "Gemma2ForCausalLM",
    hf_text: &[TEXT],
    hf_spec: hf_spec_with_caps,
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "gemma2",
        keys: &[&[
            "attn_logit_softcapping",
            "final_logit_softcapping",
            WINDOW_PATTERN,
        ]],
        spec: |config| {
            let mut spec = gguf_spec(config, GGUF_LAYERS_OF_27B)?;
            for layer in &mut spec.layers {
                let cap = config.number("attn_logit_softcapping")?.unwrap_or(50.0);
                layer.attention_mut().soft_cap = Some(cap);
            }
            let cap = config.number("final_logit_softcapping")?.unwrap_or(30.0);
            spec.logit_soft_cap = Some(cap);
            let window = config.window()?.or(Some(4096));
            config.put_windows(&mut spec, window, FULL_INTERVAL)?;
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

/// Also VaultGemma's, but for its norms.
pub(super) fn hf_spec_with_caps(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    let mut spec = hf_spec(config, &DEFAULTS)?;
    let cap = config.number_unless_null("attn_logit_softcapping", 50.0)?;
    for layer in &mut spec.layers {
        layer.attention_mut().soft_cap = cap.map(|cap| cap as f32);
    }
    let cap = config.number_unless_null("final_logit_softcapping", 30.0)?;
    spec.logit_soft_cap = cap.map(|cap| cap as f32);
    let sliding = config.sliding_layers(&spec, FULL_INTERVAL)?;
    config.put_windows(&mut spec, WindowRule::Always, |layer| sliding[layer])?;
    Ok(spec)
}

/// Also Gemma's and Gemma 3's.
pub(super) const DEFAULTS: HfDefaults = HfDefaults {
    attention_bias: AttentionBias::OfAll,
    rotates_part_of_a_head: false,
    rope_scalings: RopeScalings::Common,
    has_ropes_by_kind: false,
    has_plain_mlp: false,
    has_gemma_activation: true,
};

/// What Gemma 2 and 3 have in common.
pub(super) fn hf_spec(config: &HfConfig, defaults: &HfDefaults) -> Result<ModelSpec, Refusal> {
    config.refuse("use_bidirectional_attention")?;
    let model = config.uniform(defaults)?;
    let mut spec = model.spec();
    put_norms(&mut spec);
    spec.embedding_multiplier = config.round(root_of_width(&spec))?;
    let scalar = config.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    for layer in &mut spec.layers {
        layer.attention_mut().scale = scalar.powf(-0.5) as f32;
    }
    Ok(spec)
}

/// What GGUF files of Gemma 2 and 3 have in common. They do not say how queries are scaled, which
/// only the model of so many layers does by its width.
pub(super) fn gguf_spec(
    config: &GgufConfig<'_>,
    layers_of_27b: usize,
) -> Result<ModelSpec, Refusal> {
    let mut model = config.uniform()?;
    model.activation = Activation::GeluTanh;
    let mut spec = model.spec();
    put_norms(&mut spec);
    // Files do not say of which type the checkpoint was; all that are published were of this one.
    spec.embedding_multiplier = bf16::from_f32(root_of_width(&spec)).to_f32();
    if spec.layers.len() == layers_of_27b {
        let width = spec.hidden as f64 / spec.heads().q_heads as f64;
        for layer in &mut spec.layers {
            layer.attention_mut().scale = width.powf(-0.5) as f32;
        }
    }
    Ok(spec)
}

/// What embeddings are multiplied with, before it is rounded.
pub(super) fn root_of_width(spec: &ModelSpec) -> f32 {
    (spec.hidden as f64).sqrt() as f32
}

/// Gives a spec Gemma's norms.
fn put_norms(spec: &mut ModelSpec) {
    spec.norms.from_one = true;
    for layer in &mut spec.layers {
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
    }
}

/// Names of Gemma 2's and 3's checkpoints.
pub(super) fn hf_tensor(name: TensorName) -> StoredTensor {
    match name {
        TensorName::Layer(layer, LayerTensor::MlpNorm) => {
            let stored = format!("model.layers.{layer}.pre_feedforward_layernorm.weight");
            StoredTensor::own(name, stored)
        }
        _ => llama_hf(name),
    }
}
