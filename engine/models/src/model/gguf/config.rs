//! A GGUF file's `{architecture}.*` keys → the shapes and constants of the transformer.

use ebb_kernels::model::{ModelSpec, TensorName};

use super::file::GgufFile;
use super::keys::Keys;
use super::metadata::{GgufMetadata, required};
use super::names::gguf_name;
use super::rope_scaling::scaling;
use crate::model::error::Refusal;
use crate::model::family::Family;
use crate::model::rope::rope;
use crate::model::tensors::check_spec;
use crate::model::window::clamp_to_window;

/// What the metadata say of the computation.
pub(crate) struct GgufConfig {
    pub(crate) family: Family,
    pub(crate) spec: ModelSpec,
    pub(crate) notes: Vec<String>,
}

/// Reads the architecture, refusing every key that is not understood.
pub(crate) fn read_config(file: &GgufFile) -> Result<GgufConfig, Refusal> {
    let metadata = file.metadata();
    let family = family(metadata)?;
    let keys = Keys {
        metadata,
        prefix: family_prefix(family),
    };
    keys.refuse_unknown()?;

    let hidden = keys.size("embedding_length")?;
    let layers = keys.size("block_count")?;
    let q_heads = keys
        .per_layer_size("attention.head_count")?
        .ok_or_else(|| Refusal::Missing(keys.name("attention.head_count")))?;
    let kv_heads = keys
        .per_layer_size("attention.head_count_kv")?
        .unwrap_or(q_heads);
    let head_dim = head_dim(&keys, hidden, q_heads)?;
    let (scaling, scaled_positions) = scaling(&keys, file, head_dim)?;
    let (max_positions, notes) = max_positions(&keys, scaled_positions)?;
    let eps = "attention.layer_norm_rms_epsilon";
    let norm_eps = required(metadata.f32(&keys.name(eps))?, &keys.name(eps), "the model")?;
    let base = metadata
        .f32(&keys.name("rope.freq_base"))?
        .unwrap_or(10_000.0);

    let spec = UniformModel {
        hidden,
        layers,
        q_heads,
        kv_heads,
        head_dim,
        intermediate: keys
            .per_layer_size("feed_forward_length")?
            .ok_or_else(|| Refusal::Missing(keys.name("feed_forward_length")))?,
        vocab: vocab(&keys, file)?,
        norm_eps,
        rope: rope(base.into(), head_dim, &scaling)?,
        qkv_bias: family.qkv_bias() || file.tensor("blk.0.attn_q.bias").is_some(),
        qk_norm: family.qk_norm(),
        tied_embeddings: file.tensor(&gguf_name(TensorName::LmHead)).is_none(),
        max_positions,
    }
    .spec();
    Ok(GgufConfig {
        family,
        spec: check_spec(spec)?,
        notes,
    })
}

fn family(metadata: &GgufMetadata) -> Result<Family, Refusal> {
    const KIND: &str = "general.type";
    const ARCHITECTURE: &str = "general.architecture";
    if let Some(kind) = metadata.text(KIND)?
        && kind != "model"
    {
        return Err(Refusal::unsupported(KIND, format!("{kind:?}"), "model"));
    }
    const SPLIT: &str = "split.count";
    if let Some(parts) = metadata.u32(SPLIT)?
        && parts > 1
    {
        let supported = "one file (llama-gguf-split --merge joins the parts)";
        return Err(Refusal::unsupported(SPLIT, parts, supported));
    }
    match required(metadata.text(ARCHITECTURE)?, ARCHITECTURE, "the model")? {
        "llama" => Ok(Family::Llama),
        "qwen2" => Ok(Family::Qwen2),
        "qwen3" => Ok(Family::Qwen3),
        other => {
            let other = format!("{other:?}");
            Err(Refusal::unsupported(
                ARCHITECTURE,
                other,
                "llama (also for Mistral), qwen2, qwen3",
            ))
        }
    }
}

fn family_prefix(family: Family) -> &'static str {
    match family {
        Family::Llama | Family::Mistral => "llama",
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
    }
}

fn head_dim(keys: &Keys<'_>, hidden: usize, q_heads: usize) -> Result<usize, Refusal> {
    let key = keys.name("attention.key_length");
    let head_dim = match keys.metadata.u32(&key)? {
        Some(head_dim) => head_dim as usize,
        None if q_heads > 0 && hidden.is_multiple_of(q_heads) => hidden / q_heads,
        None => {
            let field = keys.name("attention.head_count");
            return Err(Refusal::invalid(
                field,
                q_heads,
                format!("a divisor of {hidden}"),
            ));
        }
    };
    for other in ["attention.value_length", "rope.dimension_count"] {
        let name = keys.name(other);
        if let Some(found) = keys.metadata.u32(&name)?
            && found as usize != head_dim
        {
            let supported = format!("the head dimension, {head_dim}");
            return Err(Refusal::unsupported(name, found, &supported));
        }
    }
    Ok(head_dim)
}

fn vocab(keys: &Keys<'_>, file: &GgufFile) -> Result<usize, Refusal> {
    let embedding = gguf_name(TensorName::Embedding);
    let Some(tensor) = file.tensor(&embedding) else {
        return Err(Refusal::MissingTensor(embedding));
    };
    let rows = tensor.shape[0];
    let name = keys.name("vocab_size");
    match keys.metadata.u32(&name)? {
        Some(vocab) if vocab as usize != rows => Err(Refusal::invalid(
            name,
            vocab,
            format!("{rows}, the rows of `{embedding}`"),
        )),
        _ => Ok(rows),
    }
}

fn max_positions(
    keys: &Keys<'_>,
    scaled_positions: Option<f64>,
) -> Result<(usize, Vec<String>), Refusal> {
    let context = keys
        .size("context_length")?
        .max(scaled_positions.unwrap_or(0.0) as usize);
    let name = keys.name("attention.sliding_window");
    // 0 stands for no window.
    let window = keys.metadata.u32(&name)?.filter(|window| *window > 0);
    Ok(clamp_to_window(
        context,
        window.map(|window| window as usize),
        &name,
    ))
}
