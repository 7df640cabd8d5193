//! PM-KVQ's channel reparameterisation (arXiv 2505.18610, "SmoothAttention"): keys divided by λ,
//! queries multiplied by it.
//!
//! Per-token keys share one range among all channels of a head, so that a loud channel costs every
//! other one its bits. With one λ for both channels of a RoPE pair (i, i + head_dim / 2) the
//! scaling commutes with the rotation, q·k is as before, and it folds into the weights:
//!
//! ```text
//! W_q' = λ W_q        b_q' = λ b_q        λ of the query head's KV head
//! W_k' = W_k / λ      b_k' = b_k / λ
//! w_q_norm' = λ w_q_norm                  where heads are normed: one λ for all
//! w_k_norm' = w_k_norm / λ
//! ```
//!
//! Where weights cannot be changed, backends compute the same behind RoPE in every step
//! ([`OnlineKeyScales`](ebb_kernels::model::OnlineKeyScales)).
//!
//! Folded weights are rounded to bf16 once more, unless λ is a power of two. Keys with a range of
//! their own in each channel (all formats but the per-token ones) do not change with λ.

use ebb_kernels::bf16;
use ebb_kernels::model::{Feature, LayerTensor, ModelSpec, QkNorm, TensorName};
use serde::{Deserialize, Serialize};

/// λ of every layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyScales {
    /// The per-token key format whose error they make small.
    pub format: String,
    /// The exponent found for each layer: λ is the greatest key of a pair to this power.
    pub alpha: Vec<f64>,
    /// KV heads with scales of their own: all of them, or 1 that is for all.
    pub heads: usize,
    /// λ, `[layers][heads * head_dim / 2]`.
    pub scales: Vec<Vec<f32>>,
}

/// What models with key scales may have beyond a plain layer. Channels that do not rotate in pairs
/// across the halves of a head could not share a λ.
pub(super) const KEY_SCALE_FEATURES: [Feature; 28] = [
    Feature::NoRope,
    Feature::Scale,
    Feature::Window,
    Feature::Chunks,
    Feature::Sinks,
    Feature::SoftCap,
    Feature::WholeQkNorm,
    Feature::NormAfter,
    Feature::NormBoth,
    Feature::Experts,
    Feature::WeightedInput,
    Feature::RouterCap,
    Feature::ParallelMlp,
    Feature::GeluTanh,
    Feature::Relu2,
    Feature::Xielu,
    Feature::PlainMlp,
    Feature::MlpBias,
    Feature::QueryGrowth,
    Feature::LmHeadBias,
    Feature::LayerNorm,
    Feature::NormBias,
    Feature::NormFromOne,
    Feature::EmbeddingMultiplier,
    Feature::EmbeddingNorm,
    Feature::ResidualMultiplier,
    Feature::LogitMultiplier,
    Feature::LogitSoftCap,
];

/// Least and greatest λ, as in the paper's code.
pub const SCALE_MIN: f32 = 1e-4;
/// See [`SCALE_MIN`].
pub const SCALE_MAX: f32 = 1e4;

impl KeyScales {
    /// Heads with scales of their own in such a model: where heads are normed, the norm's weights
    /// are one for all.
    pub fn heads_of(spec: &ModelSpec) -> usize {
        let first = spec
            .attentions()
            .next()
            .map(|(_, attention)| attention.qk_norm);
        match first {
            Some(QkNorm::PerHead) => 1,
            _ => spec.heads().kv_heads,
        }
    }

    /// Whether there is a λ of sound size for every pair of a model's keys; otherwise what is
    /// wrong.
    ///
    /// # Errors
    /// A clause for a sentence.
    pub fn check(&self, layers: usize, kv_heads: usize, head_dim: usize) -> Result<(), String> {
        let sound = |x: &f32| (SCALE_MIN..=SCALE_MAX).contains(x);
        if self.heads != 1 && self.heads != kv_heads {
            return Err(format!(
                "its key scales are for {} heads, not for 1 or {kv_heads}",
                self.heads
            ));
        }
        let pairs = self.heads * head_dim / 2;
        let whole = |scales: &Vec<f32>| scales.len() == pairs && scales.iter().all(sound);
        if self.scales.len() != layers
            || self.alpha.len() != layers
            || !self.scales.iter().all(whole)
        {
            return Err(format!(
                "its key scales must be {layers} lists of {pairs} numbers from {SCALE_MIN} to \
                 {SCALE_MAX}, and as many exponents"
            ));
        }
        if !self.alpha.iter().all(|a| (0.0..=1.0).contains(a)) {
            return Err("the exponents of its key scales must be from 0 to 1".to_owned());
        }
        Ok(())
    }

    /// Whether a tensor has λ folded into it.
    pub(super) fn change(spec: &ModelSpec, name: TensorName) -> bool {
        place(spec, name).is_some()
    }

    /// Folds λ into rows of a tensor, from `first_row` on.
    pub(super) fn fold(
        &self,
        spec: &ModelSpec,
        name: TensorName,
        first_row: usize,
        rows: &mut [bf16],
    ) {
        let (Some((is_query, width)), TensorName::Layer(layer, _)) = (place(spec, name), name)
        else {
            return;
        };
        let heads = spec.heads();
        let (dim, pairs) = (heads.head_dim, heads.head_dim / 2);
        let queries_of_head = heads.group();
        // What the weights count from.
        let from = match name.is_norm() && spec.norms.from_one {
            true => 1.0,
            false => 0.0,
        };
        // The KV cache has a layer for each with attention.
        let before = spec.attentions().take_while(|(at, _)| *at < layer);
        let scales = &self.scales[before.count()];
        for (channel, row) in (first_row..).zip(rows.chunks_exact_mut(width)) {
            let head = channel / dim / if is_query { queries_of_head } else { 1 };
            let head = if self.heads == 1 { 0 } else { head };
            let scale = scales[head * pairs + channel % dim % pairs];
            for weight in row {
                let exact = from + weight.to_f32();
                let scaled = if is_query {
                    exact * scale
                } else {
                    exact / scale
                };
                *weight = bf16::from_f32(scaled - from);
            }
        }
    }
}

/// Of a tensor that λ is folded into: whether it is of queries, and how wide its rows are.
fn place(spec: &ModelSpec, name: TensorName) -> Option<(bool, usize)> {
    use LayerTensor as L;
    let TensorName::Layer(layer, tensor) = name else {
        return None;
    };
    let normed = spec.layers[layer].attention()?.qk_norm != QkNorm::None;
    match tensor {
        L::Q if !normed => Some((true, spec.hidden)),
        L::K if !normed => Some((false, spec.hidden)),
        L::QBias if !normed => Some((true, 1)),
        L::KBias if !normed => Some((false, 1)),
        L::QNorm => Some((true, 1)),
        L::KNorm => Some((false, 1)),
        _ => None,
    }
}
