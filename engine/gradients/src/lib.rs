//! Loss gradients of a decoder-only transformer with respect to what its KV
//! cache holds, by candle's autograd.
//!
//! [`gradients`] runs one text through the model in f32 and hands out, layer by layer from the last
//! to the first, dL/dW_k, dL/dW_v, and the rotated keys and the values with dL/dK and dL/dV. L is
//! the mean cross entropy of each token given those before it (labels shifted once).
//!
//! Memory: a layer's input is kept and everything else of it computed again on the way back, some
//! query rows at a time, so what is held is `layers` activations of `[tokens][hidden]`, one layer's
//! weights, and one block of attention scores (`q_heads` x 512 x tokens, a handful of times).
//! Weights are asked for when a layer needs them.
//!
//! [`attentions`] goes forwards only and hands out each layer's attention, to be computed again
//! with other keys.
//!
//! The crate walks the same [`ModelSpec`](ebb_kernels::model::ModelSpec) as the backends. It knows
//! no files and no page formats; the engine reduces what it gets.

mod head;
mod layer;
mod ops;
mod run;
mod weights;

/// Arithmetic failed: shapes that do not fit, or memory.
pub use candle_core::Error as ComputeError;
pub use layer::Attention;
pub use run::{Cached, Error, LayerGradients, attentions, gradients, logits};
pub use weights::{FEATURES, Weights};
