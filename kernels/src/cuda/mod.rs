//! The CUDA backend. Kernels are compiled ahead of time from `cuda/` and embedded; at run time only
//! the driver and cuBLASLt are needed.
//!
//! - `driver`: thin owners of the driver's and cuBLASLt's objects. With feature `cuda-emulator`,
//!   `emulated` stands in its place: the same kernels, compiled for the CPU and run a CTA at a
//!   time, for tests on machines without a GPU.
//! - `arena`, `tables`, `step`, `plan`, `recurrence`: the pages, the block tables, and what else
//!   one step's kernels read about them.
//! - `attention`, `prefill`, `ops`, `products`, `sample`: launches, one checked `#[repr(C)]` struct
//!   per kernel.
//! - `codecs`: pages below 16 bit.
//! - `experts`: layers of experts.
//! - `linear`, `weights`, `program`: a model's linear layers, and the list of operations that a
//!   step walks.
//! - `backend`: the steps.
//! - `gradients`: a model's loss gradients, for calibration.
//! - [`probe`], [`selftest`]: kernels on their own, for timings and for checks.

#[cfg(not(feature = "cuda-emulator"))]
mod driver;
#[cfg(feature = "cuda-emulator")]
#[path = "emulated/mod.rs"]
mod driver;

mod arena;
mod attention;
mod backend;
mod codecs;
mod error;
mod experts;
mod gradients;
mod linear;
mod ops;
mod packed;
mod params;
mod plan;
mod prefill;
pub mod probe;
mod products;
mod program;
mod recurrence;
mod sample;
pub mod selftest;
mod step;
mod tables;
mod weights;

pub use arena::DeviceArena;
pub use attention::{Attention, DECODE_VARIANTS, DecodeVariant, ScoreSpec};
pub use backend::{CudaBackend, CudaConfig, DeviceNeeds};
pub use driver::{Device, DeviceBuffer, Event, Pinned, Stream};
pub use error::CudaError;
pub use gradients::{Attentions, CachedGradients, Gradients, LayerGradients};
pub use params::Capability;
pub use plan::SplitRule;
pub use prefill::{PREFILL_VARIANTS, PrefillVariant};
pub use products::{PackedWay, Way};
pub use step::{StepBuffers, StepCapacity};
pub use weights::LoadError;
