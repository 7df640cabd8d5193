//! Why a device cannot be used.

use ebb_kernels::cpu::LoadError;
use ebb_kernels::kv::ArenaError;
use ebb_models::model::ModelError;
use thiserror::Error;

use super::Budget;

/// Why a device cannot be used as asked.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The program has no CUDA backend.
    #[error(
        "this program was built without CUDA; build it with `cargo build --release --features \
         cuda`, or use --device cpu"
    )]
    NotBuilt,
    /// The machine has no driver.
    #[error("--device {device}: {why}")]
    NoDriver {
        /// The device asked for.
        device: String,
        /// What was looked for, and what to do.
        why: String,
    },
    /// The device failed, or cannot run this model.
    #[error("{device}: {why}")]
    Failed {
        /// The device.
        device: String,
        /// What it said.
        why: String,
    },
    /// Pages that the device has no kernels for.
    #[error(
        "{device} has no kernels for a KV cache of {head_dim} channels a head that shrinks to such \
         formats, only of 64 and 128, and of 256 to those of the ladders; use --device cpu"
    )]
    Pages {
        /// The device.
        device: String,
        /// The model's.
        head_dim: usize,
    },
    /// The same, with their names.
    #[error(
        "{device} has no kernels for {formats} pages of {head_dim} channels a head; choose other \
         formats, or --device cpu"
    )]
    Formats {
        /// The device.
        device: String,
        /// Names of the formats.
        formats: String,
        /// The model's.
        head_dim: usize,
    },
    /// The KV cache does not fit.
    #[error(
        "{device} has too little memory for this model and its KV cache:\n{budget}\n{why}; use a \
         larger GPU, or lower --max-running, --max-step-tokens or --max-context"
    )]
    Memory {
        /// The device.
        device: String,
        /// The arithmetic.
        budget: Budget,
        /// What is missing.
        why: String,
    },
    /// A GPU cannot load the weights.
    #[error("the model's weights cannot be loaded: {0}")]
    Weights(String),
    /// The CPU cannot load the weights.
    #[error("the model's weights cannot be loaded: {0}")]
    CpuWeights(#[from] LoadError<ModelError>),
    /// The KV pool cannot be made.
    #[error("the KV cache cannot be made: {0}")]
    Arena(#[from] ArenaError),
}
