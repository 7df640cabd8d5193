//! What GGUF files of Qwen3-Next, Qwen3.5 and Qwen3.5-MoE have in common: the keys and the names of
//! layers that follow the delta rule.

use ebb_kernels::model::{
    GatedDeltaSpec, LayerTensor, ModelSpec, QkNorm, Routing, SharedExpert, TensorName,
};

use super::qwen3_next::{FULL_INTERVAL, Q, QKVZ, spec};
use super::{StoredTensor, llama_gguf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::{
    GgufConfig, PREDICTING, RECURRENT_HEADS, RECURRENT_TAPS, RECURRENT_WIDTH, ROPE_SECTIONS,
};
use crate::model::gguf::experts::{EXPERT_WIDTH, SHARED_WIDTH};

const QKV: &[LayerTensor] = &[
    LayerTensor::DeltaQ,
    LayerTensor::DeltaK,
    LayerTensor::DeltaV,
];

/// One layer of so many has attention.
const INTERVAL: &str = "full_attention_interval";
/// Or a list of those that have none.
const RECURRENT: &str = "attention.recurrent_layers";

const K_DIM: &str = "ssm.state_size";
const K_HEADS: &str = "ssm.group_count";

/// Of all layers but for their experts.
pub(super) const KEYS: &[&str] = &[
    INTERVAL,
    RECURRENT,
    ROPE_SECTIONS,
    PREDICTING,
    RECURRENT_TAPS,
    RECURRENT_WIDTH,
    K_DIM,
    RECURRENT_HEADS,
    K_HEADS,
];

/// Of experts.
pub(super) const EXPERT_KEYS: &[&str] = &[EXPERT_WIDTH, SHARED_WIDTH];

/// The layers, with dense MLPs.
pub(super) fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    check_sections(config)?;
    let mut model = config.uniform_with_part(false)?;
    model.qk_norm = QkNorm::PerHead;
    let (v_heads, v_dim) = config.recurrent_heads()?;
    let delta = GatedDeltaSpec {
        k_heads: config.required_size(K_HEADS)?,
        v_heads,
        k_dim: config.required_size(K_DIM)?,
        v_dim,
        taps: config.required_size(RECURRENT_TAPS)?,
        norm_eps: model.norm_eps,
        doubled: false,
    };
    let recurrent = match config.flags(RECURRENT, model.layers)? {
        Some(recurrent) => recurrent,
        None => config.all_but_every(INTERVAL, FULL_INTERVAL, model.layers)?,
    };
    config.leave_out_predicting(&mut model)?;
    let attention: Vec<_> = recurrent.iter().map(|recurrent| !recurrent).collect();
    Ok(spec(model, delta, &attention))
}

/// Text has the same time, height and width everywhere, and 0 in the fourth place.
fn check_sections(config: &GgufConfig<'_>) -> Result<(), Refusal> {
    match config.integers(ROPE_SECTIONS)?.as_deref() {
        Some([_, _, _, fourth]) if *fourth != 0 => {
            let supported = "0 in the fourth place";
            Err(Refusal::unsupported(
                config.name(ROPE_SECTIONS),
                format!("{fourth} in the fourth place"),
                supported,
            ))
        }
        _ => Ok(()),
    }
}

/// Puts experts into all layers, and beside them one that every token goes through, as far as its
/// gate lets it.
pub(super) fn put_gguf_experts(
    config: &GgufConfig<'_>,
    spec: &mut ModelSpec,
) -> Result<(), Refusal> {
    let mut experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
    experts.shared = Some(SharedExpert {
        intermediate: config.required_size(SHARED_WIDTH)?,
        gated: true,
    });
    put_experts(spec, &experts, |_| true);
    Ok(())
}

/// Where files of Qwen3-Next that were written before 2026 have a tensor: queries, keys, values and
/// what opens them lie together by key head, as in Hugging Face checkpoints.
pub(super) fn older(name: TensorName) -> Option<StoredTensor> {
    match name {
        TensorName::Layer(layer, part) if QKVZ.contains(&part) => Some(StoredTensor::by_head(
            name,
            format!("blk.{layer}.ssm_in.weight"),
            QKVZ,
        )),
        _ => None,
    }
}

/// Names of tensors, and what lies together under one.
pub(super) fn gguf_tensor(name: TensorName) -> StoredTensor {
    match name {
        TensorName::Layer(layer, part) if QKV.contains(&part) => {
            StoredTensor::part(name, format!("blk.{layer}.attn_qkv.weight"), QKV)
        }
        TensorName::Layer(layer, part) if Q.contains(&part) => {
            StoredTensor::by_head(name, format!("blk.{layer}.attn_q.weight"), Q)
        }
        TensorName::Layer(layer, LayerTensor::MlpNorm) => {
            StoredTensor::own(name, format!("blk.{layer}.post_attention_norm.weight"))
        }
        _ => llama_gguf(name),
    }
}
