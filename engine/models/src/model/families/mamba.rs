//! Mamba-2 layers as Granite and Bamba have them, and Nemotron-H in part: their fields and keys,
//! and names of their tensors.

use ebb_kernels::model::{LayerTensor, Mamba2Spec, TensorName};

use super::{StoredTensor, llama_gguf};
use crate::model::error::Refusal;
use crate::model::gguf::config::{GgufConfig, RECURRENT_HEADS, RECURRENT_TAPS, RECURRENT_WIDTH};
use crate::model::hf::config::HfConfig;

/// What the rows of the first product belong to.
const IN: &[LayerTensor] = &[
    LayerTensor::MambaZ,
    LayerTensor::MambaX,
    LayerTensor::MambaB,
    LayerTensor::MambaC,
    LayerTensor::MambaDt,
];

/// The keys of such layers in GGUF files.
pub(super) const GGUF_KEYS: &[&str] = &[
    RECURRENT_TAPS,
    RECURRENT_WIDTH,
    RECURRENT_HEADS,
    STATE_DIM,
    GROUPS,
];
const STATE_DIM: &str = "ssm.state_size";
const GROUPS: &str = "ssm.group_count";

/// The fields that begin with `mamba_`. The norm is of all channels.
pub(super) fn hf_spec(
    config: &HfConfig,
    hidden: usize,
    norm_eps: f32,
) -> Result<Mamba2Spec, Refusal> {
    config.refuse("mamba_proj_bias")?;
    // Convolutions have the same.
    config.refuse_all_but_silu("silu")?;
    let size = |key, default| Ok::<_, Refusal>(config.size(key)?.unwrap_or(default));
    let heads = size("mamba_n_heads", 128)?;
    let width = size("mamba_expand", 2)?.saturating_mul(hidden);
    const HEAD_DIM: &str = "mamba_d_head";
    let head_dim = match config.size_or_auto(HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None => width.checked_div(heads).unwrap_or(0),
    };
    if head_dim.checked_mul(heads) != Some(width) {
        let expected = format!("{width} (mamba_expand times hidden_size) over mamba_n_heads");
        return Err(Refusal::invalid(HEAD_DIM, head_dim, &expected));
    }
    Ok(Mamba2Spec {
        heads,
        head_dim,
        groups: size("mamba_n_groups", 1)?,
        state_dim: size("mamba_d_state", 256)?,
        taps: size("mamba_d_conv", 4)?,
        conv_bias: config.bool("mamba_conv_bias")?.unwrap_or(true),
        norm_parts: Some(1),
        norm_eps,
        time_steps: config.limits("time_step_limit")?,
    })
}

/// Where a checkpoint has a tensor of such a layer, if it is one, under names that begin with
/// `prefix`.
pub(super) fn hf_tensor(name: TensorName, prefix: &str) -> Option<StoredTensor> {
    use LayerTensor as L;
    let TensorName::Layer(_, tensor) = name else {
        return None;
    };
    let stored = |part: &str| format!("{prefix}.{part}");
    let part = match tensor {
        part if IN.contains(&part) => {
            return Some(StoredTensor::part(name, stored("in_proj.weight"), IN));
        }
        L::MambaConv => "conv1d.weight",
        L::MambaConvBias => "conv1d.bias",
        L::MambaDecay => "A_log",
        L::MambaDtBias => "dt_bias",
        L::MambaSkip => "D",
        L::MambaNorm => "norm.weight",
        L::MambaOut => "out_proj.weight",
        _ => return None,
    };
    Some(StoredTensor::own(name, stored(part)))
}

/// The keys, with the norm of all channels. Files do not bound time steps. `layer` is one of those
/// with a recurrence: all have a bias of their convolution if that one has.
pub(super) fn gguf_spec(
    config: &GgufConfig<'_>,
    layer: usize,
    norm_eps: f32,
) -> Result<Mamba2Spec, Refusal> {
    let (heads, head_dim) = config.recurrent_heads()?;
    let bias = gguf_tensor(TensorName::Layer(layer, LayerTensor::MambaConvBias));
    Ok(Mamba2Spec {
        heads,
        head_dim,
        groups: config.required_size(GROUPS)?,
        state_dim: config.required_size(STATE_DIM)?,
        taps: config.required_size(RECURRENT_TAPS)?,
        conv_bias: config.has_tensor(&bias.name),
        norm_parts: Some(1),
        norm_eps,
        time_steps: [0.0, f32::INFINITY],
    })
}

/// Where a GGUF file has a tensor of such a layer, or any other.
pub(super) fn gguf_tensor(name: TensorName) -> StoredTensor {
    match name {
        TensorName::Layer(layer, part) if IN.contains(&part) => {
            StoredTensor::part(name, format!("blk.{layer}.ssm_in.weight"), IN)
        }
        TensorName::Layer(layer, LayerTensor::MambaNorm) => {
            StoredTensor::by_group(name, format!("blk.{layer}.ssm_norm.weight"))
        }
        _ => llama_gguf(name),
    }
}
