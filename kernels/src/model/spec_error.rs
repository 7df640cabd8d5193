//! What can be wrong with a spec.

use super::features::Feature;
use crate::kv::GeometryError;

/// A spec that no backend can run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A dimension is zero.
    #[error("{0} must not be zero")]
    Zero(&'static str),
    /// A dimension is beyond any real model (2^24), likely a corrupt file.
    #[error("{name} is {value}, which is more than this engine supports (16777216)")]
    TooLarge {
        /// Which dimension.
        name: &'static str,
        /// Its value.
        value: usize,
    },
    /// Query heads do not divide among the KV heads.
    #[error("{q_heads} query heads cannot share {kv_heads} KV heads evenly")]
    Heads {
        /// Query heads.
        q_heads: usize,
        /// KV heads.
        kv_heads: usize,
    },
    /// Value heads of the delta rule do not divide among the key heads.
    #[error("{v_heads} value heads cannot share {k_heads} key heads of the delta rule evenly")]
    DeltaHeads {
        /// Key heads.
        k_heads: usize,
        /// Value heads.
        v_heads: usize,
    },
    /// Heads of Mamba-2 do not divide among the groups.
    #[error("{heads} heads of Mamba-2 cannot share the B and C of {groups} groups evenly")]
    Mamba2Groups {
        /// Heads.
        heads: usize,
        /// Groups.
        groups: usize,
    },
    /// Channels of Mamba-2 do not divide among the parts of its norm.
    #[error("{width} channels of Mamba-2 cannot be normalised in {parts} equal parts")]
    Mamba2Norm {
        /// Channels of all heads.
        width: usize,
        /// Parts.
        parts: usize,
    },
    /// Time steps of Mamba-2 that none is within.
    #[error("the least time step of Mamba-2 must be finite, from 0 to the largest")]
    TimeSteps,
    /// A convolution sees too few tokens or too many.
    #[error("a convolution over {0} tokens is not supported, only over 2 to 8")]
    Taps(usize),
    /// No layer has attention.
    #[error("the model has no attention, which this engine does not serve")]
    NoAttention,
    /// A layer reads keys and values of one that cannot give them.
    #[error(
        "layer {layer} reads the keys and values of layer {from}, which must come before it, have \
         keys and values of its own, and heads and a window like its"
    )]
    SharedKv {
        /// The layer.
        layer: usize,
        /// What it refers to.
        from: usize,
    },
    /// RoPE rotates more channels than a head has, or none.
    #[error("RoPE needs 1 to {expected} frequencies (half of head_dim), got {actual}")]
    Rope {
        /// `head_dim / 2`.
        expected: usize,
        /// `inv_freq.len()`.
        actual: usize,
    },
    /// A frequency of RoPE is infinite or no number.
    #[error("every RoPE frequency must be a finite number")]
    RopeFrequency,
    /// Queries see chunks, but it is not said how long.
    #[error("layer {layer} attends in chunks, whose length is not given")]
    NoChunkLength {
        /// The layer.
        layer: usize,
    },
    /// A layer refers to a RoPE that is not there.
    #[error("layer {layer} refers to RoPE {rope}, but the model has {ropes}")]
    NoSuchRope {
        /// The layer.
        layer: usize,
        /// What it refers to.
        rope: usize,
        /// How many there are.
        ropes: usize,
    },
    /// Experts that cannot be, or that no backend has room for.
    #[error("a layer of experts has {0}")]
    Experts(&'static str),
    /// A constant is not a finite, non-negative number.
    #[error("{0} must be a finite number that is not negative")]
    NotFinite(&'static str),
    /// The KV geometry is impossible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A layer shares a norm that it does not have.
    #[error("layer {layer} has an MLP that shares the norm before attention, but there is none")]
    NothingToShare {
        /// The layer.
        layer: usize,
    },
    /// A layer has neither of its parts.
    #[error("layer {layer} has nothing that mixes tokens, and nothing that follows")]
    NothingInLayer {
        /// The layer.
        layer: usize,
    },
    /// Gates are opened by an activation that is computed between products only.
    #[error("layer {layer} has gates that xIELU opens; only an MLP without gates can have it")]
    XieluOfGates {
        /// The layer.
        layer: usize,
    },
    /// A backend does not compute something that the whole model needs.
    #[error("{backend} does not compute {feature}, which this model has")]
    ModelNotComputed {
        /// Which backend or calibration pass.
        backend: &'static str,
        /// What the model needs.
        feature: Feature,
    },
    /// A backend does not compute something that a layer needs.
    #[error("{backend} does not compute {feature}, which layer {layer} of this model has")]
    NotComputed {
        /// Which backend or calibration pass.
        backend: &'static str,
        /// What the model needs.
        feature: Feature,
        /// The first layer that needs it.
        layer: usize,
    },
}
