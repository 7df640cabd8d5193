//! What a model is to this crate: a spec that it can differentiate, and plain f32 weights.

use ebb_kernels::model::{Feature, TensorName};

/// What these passes compute beyond a plain layer.
pub const FEATURES: [Feature; 7] = [
    Feature::NoRope,
    Feature::PartialRope,
    Feature::Scale,
    Feature::OutputBias,
    Feature::WholeQkNorm,
    Feature::NormAfter,
    Feature::NormBoth,
];

/// Where weights come from; each is asked for twice a text, and not kept.
pub trait Weights: Sync {
    /// What can go wrong.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Embeddings of tokens, `[tokens][hidden]`.
    ///
    /// # Errors
    /// When they cannot be read.
    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, Self::Error>;

    /// A tensor of the model, row-major.
    ///
    /// # Errors
    /// When it cannot be read.
    fn tensor(&self, name: TensorName) -> Result<Vec<f32>, Self::Error>;
}
