//! A model whose layers are all the same.

use super::attention::{AttentionSpec, QkNorm};
use super::rope::Rope;
use super::spec::{Activation, LayerSpec, Mixer, Mlp, ModelSpec, NormPlace, Norms};

/// A model whose layers are all the same and plain: what most dense families are, or are close to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UniformModel {
    /// See [`ModelSpec::hidden`].
    pub hidden: usize,
    /// How many layers.
    pub layers: usize,
    /// See [`AttentionSpec::q_heads`].
    pub q_heads: usize,
    /// See [`AttentionSpec::kv_heads`].
    pub kv_heads: usize,
    /// See [`AttentionSpec::head_dim`].
    pub head_dim: usize,
    /// See [`Mlp::Dense`].
    pub intermediate: usize,
    /// See [`Mlp::Dense`].
    pub activation: Activation,
    /// See [`ModelSpec::vocab`].
    pub vocab: usize,
    /// See [`ModelSpec::norm_eps`].
    pub norm_eps: f32,
    /// The one rotary embedding.
    pub rope: Rope,
    /// See [`AttentionSpec::qkv_bias`].
    pub qkv_bias: bool,
    /// See [`AttentionSpec::o_bias`].
    pub o_bias: bool,
    /// See [`AttentionSpec::qk_norm`].
    pub qk_norm: QkNorm,
    /// See [`ModelSpec::tied_embeddings`].
    pub tied_embeddings: bool,
    /// See [`ModelSpec::max_positions`].
    pub max_positions: usize,
}

impl UniformModel {
    /// The spec, its norms before attention and MLP.
    pub fn spec(self) -> ModelSpec {
        let attention = AttentionSpec {
            qkv_bias: self.qkv_bias,
            o_bias: self.o_bias,
            qk_norm: self.qk_norm,
            ..AttentionSpec::new(self.q_heads, self.kv_heads, self.head_dim)
        };
        let layer = LayerSpec {
            mixer: Mixer::Attention(attention),
            mixer_norm: NormPlace::Before,
            mlp: Mlp::Dense {
                intermediate: self.intermediate,
                activation: self.activation,
            },
            mlp_norm: NormPlace::Before,
            output_scale: false,
        };
        ModelSpec {
            hidden: self.hidden,
            vocab: self.vocab,
            norm_eps: self.norm_eps,
            norms: Norms::default(),
            embedding_multiplier: 1.0,
            embedding_norm: false,
            residual_multiplier: 1.0,
            logit_multiplier: 1.0,
            logit_soft_cap: None,
            per_layer_inputs: None,
            tied_embeddings: self.tied_embeddings,
            lm_head_bias: false,
            max_positions: self.max_positions,
            ropes: vec![self.rope],
            layers: vec![layer; self.layers],
        }
    }
}
