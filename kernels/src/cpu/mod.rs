//! The CPU backend: weights as they are packed or in bf16, pages at 16 bit or shrunk, sums in f32,
//! or of integers where weights are packed, and one fixed order of operations for every output
//! element.
//!
//! Bits do not depend on the batch, the chunking, the thread count, the placement of frames or the
//! instruction set. That is by construction: a matrix product runs over its inner dimension in
//! order whatever the tile; attention combines blocks of 128 tokens in order of position; the
//! vector functions use only correctly rounded operations.

pub mod gemm;
pub mod packed;
pub mod simd;
pub mod softmax;
pub mod threads;

mod attention;
mod backend;
#[cfg(feature = "baseline")]
pub mod baseline;
mod experts;
mod floats;
mod forward;
mod linear;
mod load;
mod math;
mod ops;
mod prefetch;
mod program;
#[cfg(test)]
mod random;
mod recurrent;
mod scratch;
mod shared;
mod shrink;
mod weights;

pub use backend::{CpuBackend, CpuOptions};
pub use load::LoadError;
