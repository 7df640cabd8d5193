//! What a transformer is, to the backends: shapes and named tensors, no file formats.
//!
//! - [`ModelSpec`]: the model as data, layer by layer.
//! - [`Feature`]: what a model needs that not every backend computes.
//! - `ops`: the forward pass of a spec as a list of operations, which backends fuse and walk.
//! - [`TensorName`], [`WeightSource`]: the weights, by name, wherever they come from.

mod attention;
mod experts;
mod features;
mod key_scales;
mod kv_place;
pub(crate) mod ops;
mod plain_mlp;
mod query_growth;
mod random;
mod recurrent;
mod rope;
mod rotated;
pub(crate) mod routing;
mod spec;
mod spec_error;
mod tensor_names;
mod uniform;
mod weights;

pub use attention::{AttentionSpec, HeadShape, OutputGate, QkNorm, Seen};
pub use experts::{
    ExpertActivation, ExpertGroups, ExpertsSpec, RouterNorm, RouterScores, Routing, SharedExpert,
};
pub use features::Feature;
pub use key_scales::{KeyScaleError, OnlineKeyScales};
pub use kv_place::KvPlace;
pub use plain_mlp::PlainMlp;
pub use query_growth::QueryGrowth;
pub use random::RandomWeights;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
pub(crate) use random::Uniform;
pub(crate) use recurrent::TAPS_MAX;
pub use recurrent::{GatedDeltaSpec, Mamba2Spec, RecurrentSpec, ShortConvSpec};
pub use rope::{LongRope, Rope};
pub use rotated::{Rotated, RotatedError};
pub use spec::{
    Activation, LayerSpec, Mixer, Mlp, ModelSpec, NormKind, NormPlace, Norms, PerLayerInputs,
};
pub use spec_error::SpecError;
pub use tensor_names::{LayerTensor, TensorName};
pub use uniform::UniformModel;
pub use weights::WeightSource;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
pub(crate) use weights::rows_of;
