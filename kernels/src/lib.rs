//! KV page formats and the CPU compute backend; the only crate with unsafe code.
//!
//! - [`kv`]: the geometry of a KV cache, its frames, and the arena that holds them.
//! - [`model`]: what a transformer looks like (shapes) and where its weights come from.
//! - [`backend`]: the step interface every device implements.
//! - [`cpu`]: the CPU backend, which is also the oracle of every other one.
//! - [`formats`]: the page formats, one folder each.
//! - [`weight_formats`]: weights of few bits, as sources hand them to backends.
//! - `cuda`: the CUDA backend, with feature `cuda`, or `cuda-emulator` to run its kernels on the
//!   CPU.
//! - [`MappedFile`]: model files as bytes.
//!
//! This crate knows rows, blocks and frames. It knows no request and no sequence beyond one step.

pub mod backend;
pub mod cpu;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
pub mod cuda;
pub mod formats;
pub mod kv;
mod mapped_file;
mod memory;
pub mod model;
mod split_mix;
pub mod weight_formats;

pub use half::bf16;
pub use mapped_file::MappedFile;
pub use split_mix::split_mix;

/// Tokens in a block, the unit of ownership of the KV cache.
pub const BLOCK_TOKENS: usize = 128;

/// Tokens in a sub-block, the unit in which an open block grows.
pub const SUB_BLOCK_TOKENS: usize = 16;

/// Sub-blocks in a full block.
pub const SUB_BLOCKS: usize = BLOCK_TOKENS / SUB_BLOCK_TOKENS;
