//! Why an engine cannot start.

use std::path::PathBuf;

use ebb_kernels::BLOCK_TOKENS;
use ebb_kernels::kv::LayoutError;
use ebb_models::OpenError;
use ebb_scheduler::SetupError;
use thiserror::Error;

use crate::device::DeviceError;
use crate::kv_plan::KvPlanError;

/// Why an engine cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The model cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device cannot be used as asked.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Pages of the formats asked for cannot be laid out.
    #[error("the KV cache cannot have these pages: {0}")]
    Layout(#[from] LayoutError),
    /// The KV cache cannot shrink as asked for.
    #[error(transparent)]
    KvPlan(#[from] KvPlanError),
    /// The KV memory does not hold one block.
    #[error(
        "--kv-memory of {given} bytes is too small: one block of {BLOCK_TOKENS} tokens of this \
         model takes {block} bytes; give at least {least} bytes"
    )]
    KvMemory {
        /// Bytes given.
        given: u64,
        /// Bytes of a 16-bit block.
        block: u64,
        /// The least that makes sense.
        least: u64,
    },
    /// The KV memory does not hold the states of one sequence and some blocks.
    #[error(
        "--kv-memory of {given} bytes is too small: a sequence of this model has states of \
         {state} bytes in its recurrent layers, and one block of {BLOCK_TOKENS} tokens takes \
         {block} bytes; give at least {least} bytes"
    )]
    States {
        /// Bytes given.
        given: u64,
        /// Bytes of the states of a sequence.
        state: u64,
        /// Bytes of a 16-bit block.
        block: u64,
        /// The least that makes sense.
        least: u64,
    },
    /// The context asked for is more than the model or the KV memory allows.
    #[error("--max-context {given} is more than {limit}, {why}")]
    Context {
        /// Tokens asked for.
        given: usize,
        /// Tokens possible.
        limit: usize,
        /// What limits it.
        why: &'static str,
    },
    /// λ of other keys than this model's.
    #[error("the KV profile does not fit this model: {0}; calibrate this model")]
    KeyScales(String),
    /// The trajectory log cannot be started.
    #[error(
        "--trajectory-log: cannot start {path}: {cause}; name a file that is not there yet, in a \
         directory that is"
    )]
    TrajectoryLog {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// Limits that contradict each other.
    #[error("the engine's limits do not fit together: {0}")]
    Limits(#[from] SetupError),
}
