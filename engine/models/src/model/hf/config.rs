//! config.json → the shapes and constants of the transformer.

use ebb_kernels::model::ModelSpec;

use super::json::{Object, brief};
use super::rope_scaling::read_rope;
use crate::model::error::Refusal;
use crate::model::family::Family;
use crate::model::rope::rope;
use crate::model::tensors::check_spec;
use crate::model::window::clamp_to_window;

/// What config.json says.
pub(crate) struct HfConfig {
    pub(crate) family: Family,
    pub(crate) spec: ModelSpec,
    pub(crate) end_ids: Vec<u32>,
    pub(crate) notes: Vec<String>,
}

/// Reads config.json, refusing values that ask for another computation than the family's own.
pub(crate) fn read_config(bytes: &[u8]) -> Result<HfConfig, Refusal> {
    let config = Object::parse(bytes)?;
    let family = family(&config)?;
    refuse_unsupported(&config, family)?;

    let size = |key| config.size(key).and_then(|size| config.required(key, size));
    let hidden = size("hidden_size")?;
    let q_heads = size("num_attention_heads")?;
    let kv_heads = match config.size("num_key_value_heads")? {
        Some(kv_heads) => kv_heads,
        // The families' defaults differ; only Llama's is a rule.
        None if family == Family::Llama => q_heads,
        None => return Err(Refusal::Missing("num_key_value_heads".to_owned())),
    };
    let head_dim = match config.size("head_dim")? {
        Some(head_dim) => head_dim,
        None if family == Family::Qwen3 => 128,
        None if q_heads > 0 && hidden.is_multiple_of(q_heads) => hidden / q_heads,
        None => {
            let expected = format!("a divisor of hidden_size, {hidden}");
            return Err(Refusal::invalid("num_attention_heads", q_heads, expected));
        }
    };
    let positions = size("max_position_embeddings")?;
    let rope_config = read_rope(&config, positions)?;
    let (window, window_field) = window(&config)?;
    let (max_positions, notes) = clamp_to_window(rope_config.positions, window, window_field);

    let spec = UniformModel {
        hidden,
        layers: size("num_hidden_layers")?,
        q_heads,
        kv_heads,
        head_dim,
        intermediate: size("intermediate_size")?,
        vocab: size("vocab_size")?,
        norm_eps: config.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: rope(rope_config.base, head_dim, &rope_config.scaling)?,
        qkv_bias: family.qkv_bias(),
        qk_norm: family.qk_norm(),
        tied_embeddings: config.bool("tie_word_embeddings")?.unwrap_or(false),
        max_positions,
    }
    .spec();
    let end_ids = config.ids("eos_token_id")?;
    Ok(HfConfig {
        family,
        spec: check_spec(spec)?,
        end_ids,
        notes,
    })
}

fn family(config: &Object) -> Result<Family, Refusal> {
    const SUPPORTED: &str = "llama, mistral, qwen2, qwen3";
    let model_type = config.text("model_type")?;
    let model_type = config.required("model_type", model_type)?;
    let (family, class) = match model_type {
        "llama" => (Family::Llama, "LlamaForCausalLM"),
        "mistral" => (Family::Mistral, "MistralForCausalLM"),
        "qwen2" => (Family::Qwen2, "Qwen2ForCausalLM"),
        "qwen3" => (Family::Qwen3, "Qwen3ForCausalLM"),
        other => {
            return Err(Refusal::unsupported(
                "model_type",
                format!("{other:?}"),
                SUPPORTED,
            ));
        }
    };
    // The same layers also serve as classifiers and embedders, which have another head.
    if let Some(architectures) = config.get("architectures") {
        let classes = architectures.as_array().map_or(&[][..], Vec::as_slice);
        if !classes.iter().any(|found| found.as_str() == Some(class)) {
            return Err(Refusal::unsupported("architectures", architectures, class));
        }
    }
    Ok(family)
}

fn refuse_unsupported(config: &Object, family: Family) -> Result<(), Refusal> {
    if let Some(quantization) = config.get("quantization_config") {
        let supported = "safetensors in F32, F16 or BF16, or a GGUF file";
        let found = quantization.get("quant_method").unwrap_or(quantization);
        return Err(Refusal::unsupported(
            "quantization_config",
            brief(found),
            supported,
        ));
    }
    for key in ["hidden_act", "hidden_activation"] {
        if let Some(found) = config.text(key)?
            && found != "silu"
        {
            return Err(Refusal::unsupported(key, format!("{found:?}"), "silu"));
        }
    }
    // Qwen2 has its biases without saying so, and no other.
    let attention_bias = if family == Family::Qwen2 {
        None
    } else {
        Some("attention_bias")
    };
    for key in [attention_bias, Some("mlp_bias"), Some("rope_interleaved")]
        .into_iter()
        .flatten()
    {
        if config.bool(key)? == Some(true) {
            return Err(Refusal::unsupported(key, true, "false"));
        }
    }
    if let Some(factor) = config.number("partial_rotary_factor")?
        && factor != 1.0
    {
        return Err(Refusal::unsupported("partial_rotary_factor", factor, "1"));
    }
    Ok(())
}

/// The attention window, if some layer has one, and the field that says so.
fn window(config: &Object) -> Result<(Option<usize>, &'static str), Refusal> {
    const FIELD: &str = "sliding_window";
    let kinds = config.typed("layer_types", "a list of texts", |kinds| {
        kinds
            .as_array()?
            .iter()
            .map(|kind| kind.as_str())
            .collect::<Option<Vec<_>>>()
    })?;
    let in_layers = match kinds {
        Some(kinds) => {
            let known = ["full_attention", "sliding_attention"];
            if let Some(other) = kinds.iter().find(|kind| !known.contains(kind)) {
                let supported = known.join(", ");
                return Err(Refusal::unsupported(
                    "layer_types",
                    format!("{other:?}"),
                    &supported,
                ));
            }
            Some(kinds.contains(&"sliding_attention"))
        }
        None => None,
    };
    // Qwen's files carry a window that the flag switches off; Mistral's have no flag.
    let flag = config.bool("use_sliding_window")?;
    let qwen = config
        .text("model_type")?
        .is_some_and(|kind| kind.starts_with("qwen"));
    let used = in_layers.unwrap_or(flag.unwrap_or(!qwen));
    Ok((config.size(FIELD)?.filter(|_| used), FIELD))
}
