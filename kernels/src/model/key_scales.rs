//! PM-KVQ's key scales where weights cannot be changed: computed in every step.

use super::spec::ModelSpec;

/// λ of every layer: behind RoPE keys are divided by it and queries multiplied, which leaves their
/// products as they were. Channels `i` and `i + head_dim / 2` share one, as they do where λ is
/// folded into weights.
#[derive(Debug, Clone, PartialEq)]
pub struct OnlineKeyScales {
    /// KV heads with scales of their own: all of them, or 1 that is for all.
    pub heads: usize,
    /// λ, `[layers][heads * head_dim / 2]`.
    pub scales: Vec<Vec<f32>>,
}

/// Key scales that a model cannot have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeyScaleError {
    /// Of another model.
    #[error(
        "key scales must be {layers} lists, of {pairs} numbers for each of 1 or {kv_heads} heads"
    )]
    Shape {
        /// Layers of the model.
        layers: usize,
        /// Pairs of channels of a head.
        pairs: usize,
        /// KV heads of the model.
        kv_heads: usize,
    },
    /// Keys cannot be divided by it.
    #[error("a key scale of {scale}")]
    Scale {
        /// λ.
        scale: f32,
    },
    /// A channel would be left over.
    #[error("key scales need heads of an even number of channels, got {head_dim}")]
    OddHeads {
        /// Channels of a head.
        head_dim: usize,
    },
    /// There is no one list for each layer with attention.
    #[error(
        "key scales need heads of one shape in all layers, each with keys of its own; this model's \
         layers differ"
    )]
    UnevenHeads,
    /// Channels of a pair do not share a λ.
    #[error("key scales need RoPE over whole heads, or none; layer {layer} rotates a part")]
    PartialRope {
        /// The first such layer.
        layer: usize,
    },
}

impl OnlineKeyScales {
    /// Whether a model can have them.
    ///
    /// # Errors
    /// Otherwise why not.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), KeyScaleError> {
        if !spec.has_one_head_shape() {
            return Err(KeyScaleError::UnevenHeads);
        }
        let heads = spec.heads();
        if !heads.head_dim.is_multiple_of(2) {
            return Err(KeyScaleError::OddHeads {
                head_dim: heads.head_dim,
            });
        }
        let (layers, pairs) = (spec.attentions().count(), heads.head_dim / 2);
        let is_whole = |of_layer: &Vec<f32>| of_layer.len() == self.heads * pairs;
        if ![1, heads.kv_heads].contains(&self.heads)
            || self.scales.len() != layers
            || !self.scales.iter().all(is_whole)
        {
            return Err(KeyScaleError::Shape {
                layers,
                pairs,
                kv_heads: heads.kv_heads,
            });
        }
        let is_sound = |scale: &f32| *scale > 0.0 && scale.is_normal() && (1.0 / scale).is_normal();
        if let Some(&scale) = self.scales.iter().flatten().find(|s| !is_sound(s)) {
            return Err(KeyScaleError::Scale { scale });
        }
        let mut partial = spec.attentions().filter(|(_, attention)| {
            let rope = attention.rope.map(|rope| &spec.ropes[rope]);
            rope.is_some_and(|rope| rope.rotary_dim() < heads.head_dim)
        });
        match partial.next() {
            Some((layer, _)) => Err(KeyScaleError::PartialRope { layer }),
            None => Ok(()),
        }
    }

    /// What pairs of channels of the heads of a layer of the KV cache are multiplied by, Q's before
    /// K's: `[q_heads + kv_heads][head_dim / 2]`.
    pub(crate) fn factors(&self, spec: &ModelSpec, layer: usize) -> Vec<f32> {
        let heads = spec.heads();
        let pairs = heads.head_dim / 2;
        let of_head = |kv_head: usize| {
            let own = if self.heads == 1 { 0 } else { kv_head };
            &self.scales[layer][own * pairs..][..pairs]
        };
        let queries = (0..heads.q_heads).flat_map(|head| of_head(head / heads.group()));
        let keys = (0..heads.kv_heads).flat_map(of_head);
        queries.copied().chain(keys.map(|x| 1.0 / x)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Rope, UniformModel};

    fn spec(rotary_dim: usize) -> ModelSpec {
        UniformModel {
            hidden: 16,
            layers: 1,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 4,
            intermediate: 16,
            vocab: 16,
            rope: Rope::new(vec![1.0; rotary_dim / 2], 1.0),
            max_positions: 64,
            ..UniformModel::default()
        }
        .spec()
    }

    #[test]
    fn queries_are_multiplied_by_what_keys_of_their_head_are_divided_by() {
        let of = |heads, scales: &[f32]| OnlineKeyScales {
            heads,
            scales: vec![scales.to_vec()],
        };
        let own = of(2, &[2.0, 4.0, 8.0, 0.5]);
        own.check(&spec(4)).unwrap();
        let queries = [2.0, 4.0, 2.0, 4.0, 8.0, 0.5, 8.0, 0.5];
        let keys = [0.5, 0.25, 0.125, 2.0];
        assert_eq!(own.factors(&spec(4), 0), [&queries[..], &keys].concat());
        let all = of(1, &[2.0, 4.0]);
        all.check(&spec(4)).unwrap();
        assert_eq!(all.factors(&spec(4), 0)[8..], [0.5, 0.25, 0.5, 0.25]);
    }

    #[test]
    fn scales_that_a_model_cannot_have_are_refused() {
        let check = |heads, scales: &[f32], rotary_dim| {
            let scales = OnlineKeyScales {
                heads,
                scales: vec![scales.to_vec()],
            };
            scales.check(&spec(rotary_dim)).unwrap_err().to_string()
        };
        assert!(check(2, &[1.0; 2], 4).contains("1 or 2 heads"));
        assert!(check(3, &[1.0; 6], 4).contains("1 or 2 heads"));
        assert!(check(1, &[1.0, 0.0], 4).contains("a key scale of 0"));
        assert!(check(1, &[1.0, f32::NAN], 4).contains("NaN"));
        assert!(check(1, &[1.0; 2], 2).contains("layer 0 rotates a part"));
    }
}
