//! LFM2: short convolutions between layers of attention.

use ebb_kernels::model::{
    LayerTensor, Mixer, ModelSpec, QkNorm, RecurrentSpec, ShortConvSpec, TensorName, UniformModel,
};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf, put_recurrent};
use crate::model::error::Refusal;
use crate::model::gguf::config::{GgufConfig, SHORT_CONV_TAPS};
use crate::model::hf::config::{HfConfig, HfDefaults, LINEAR};

pub(super) static FAMILY: Family = Family {
    name: "lfm2",
    hf_class: "Lfm2ForCausalLM",
    hf_text: &[TextType {
        model_types: &["lfm2"],
        sizes: r#"{
            "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
            "max_position_embeddings": 128000
        }"#,
        constants: r#"{
            "norm_eps": 1e-5, "rope_theta": 1000000.0, "conv_L_cache": 3,
            "block_multiple_of": 256, "block_auto_adjust_ff_dim": true,
            "intermediate_size": 12288, "tie_word_embeddings": true
        }"#,
    }],
    hf_spec,
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "lfm2",
        keys: &[&[SHORT_CONV_TAPS]],
        spec: gguf_spec,
        tensor: gguf_tensor,
        permutes_qk: false,
    }),
};

/// Layers without heads of keys have a convolution.
pub(super) fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    let mut model = config.uniform()?;
    model.qk_norm = QkNorm::PerHead;
    let mut spec = model.spec();
    let taps = config.required_size(SHORT_CONV_TAPS)?;
    let attention = config.layers_with_keys(spec.layers.len())?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if attention[index] {
            continue;
        }
        let bias = config.has_tensor(&format!("blk.{index}.shortconv.conv.bias"));
        let conv = ShortConvSpec { taps, bias };
        layer.mixer = Mixer::Recurrent(RecurrentSpec::ShortConv(conv));
    }
    Ok(spec)
}

/// The last norm is called as if it were that of embeddings.
pub(super) fn gguf_tensor(name: TensorName) -> StoredTensor {
    match name {
        TensorName::FinalNorm => StoredTensor::own(name, "token_embd_norm.weight"),
        _ => llama_gguf(name),
    }
}

/// Also LFM2-MoE's, as far as its layers are not of experts.
pub(super) fn hf_tensor(name: TensorName) -> StoredTensor {
    use LayerTensor as L;
    let (layer, part) = match name {
        TensorName::FinalNorm => {
            return StoredTensor::own(name, "model.embedding_norm.weight");
        }
        TensorName::Layer(layer, part) => (layer, part),
        _ => return llama_hf(name),
    };
    let part = match part {
        L::AttnNorm => "operator_norm.weight",
        L::MlpNorm => "ffn_norm.weight",
        L::QNorm => "self_attn.q_layernorm.weight",
        L::KNorm => "self_attn.k_layernorm.weight",
        L::O => "self_attn.out_proj.weight",
        L::Gate => "feed_forward.w1.weight",
        L::Up => "feed_forward.w3.weight",
        L::Down => "feed_forward.w2.weight",
        _ => return llama_hf(name),
    };
    StoredTensor::own(name, format!("model.layers.{layer}.{part}"))
}

/// What the layers of both have in common.
pub(super) fn model(config: &HfConfig) -> Result<UniformModel, Refusal> {
    let mut model = config.uniform(&HfDefaults::default())?;
    model.qk_norm = QkNorm::PerHead;
    if let Some(eps) = config.number("norm_eps")? {
        model.norm_eps = eps as f32;
    }
    // Older files have a name of their own.
    if let Some(is_tied) = config.bool("tie_embedding")? {
        model.tied_embeddings = is_tied;
    }
    Ok(model)
}

/// Puts convolutions into the layers that have no attention.
pub(super) fn put_convolutions(
    config: &HfConfig,
    spec: &mut ModelSpec,
    attention: &[bool],
) -> Result<(), Refusal> {
    let conv = ShortConvSpec {
        taps: config.size("conv_L_cache")?.unwrap_or(3),
        bias: config.bool("conv_bias")?.unwrap_or(false),
    };
    put_recurrent(spec, RecurrentSpec::ShortConv(conv), attention);
    Ok(())
}

fn hf_spec(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    let mut model = model(config)?;
    model.intermediate = intermediate(config, model.intermediate)?;
    let mut spec = model.spec();
    let layers = spec.layers.len();
    let attention = match config.attention_layers(layers, &["conv", LINEAR])? {
        Some(attention) => attention,
        None => {
            let indices = config.sizes("full_attn_idxs")?;
            let all = || (0..layers).collect();
            let indices: Vec<usize> = indices.unwrap_or_else(all);
            (0..layers).map(|layer| indices.contains(&layer)).collect()
        }
    };
    put_convolutions(config, &mut spec, &attention)?;
    Ok(spec)
}

/// The width of MLPs, which the configuration gives as what it would be without gates.
fn intermediate(config: &HfConfig, nominal: usize) -> Result<usize, Refusal> {
    let nominal = config.size("block_ff_dim")?.unwrap_or(nominal);
    if config.bool("block_auto_adjust_ff_dim")? == Some(false) {
        return Ok(nominal);
    }
    let adjusted = nominal.saturating_mul(2) / 3;
    let multiplier = config.number_unless_null("block_ffn_dim_multiplier", 1.0)?;
    let Some(multiplier) = multiplier else {
        return Ok(adjusted);
    };
    let adjusted = (multiplier * adjusted as f64) as usize;
    match config.size("block_multiple_of")?.unwrap_or(256) {
        0 => Err(Refusal::invalid("block_multiple_of", 0, "a width above 0")),
        multiple => Ok(adjusted.div_ceil(multiple).saturating_mul(multiple)),
    }
}
