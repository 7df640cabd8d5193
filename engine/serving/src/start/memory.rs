//! How much KV memory there is, and what fits into it.

use ebb_block_manager::precision::MinBits;
use ebb_block_manager::{BLOCK_TOKENS, PoolConfig};
use ebb_models::model::LoadedModel;

use super::{EngineConfig, StartError};
use crate::device::{Device, DeviceError, StepSizes};

/// Share of a GPU's memory that is used unless told otherwise.
pub const GPU_MEMORY_UTILIZATION: f64 = 0.9;

/// KV memory on the CPU unless told otherwise.
pub const CPU_KV_MEMORY_BYTES: u64 = 1 << 30;

/// Bytes for the KV cache: what was asked for, if the device has them, or what the device has left.
pub(super) fn kv_memory(
    config: &EngineConfig,
    model: &LoadedModel,
    steps: &StepSizes,
) -> Result<u64, StartError> {
    let Device::Cuda(device) = &config.device else {
        return Ok(config.kv_memory_bytes.unwrap_or(CPU_KV_MEMORY_BYTES));
    };
    let budget = device.budget(
        model,
        config.expand_weights,
        steps,
        config.gpu_memory_utilization,
    )?;
    // What is held in the end is told after the start.
    for line in budget.lines() {
        tracing::debug!("{line}");
    }
    let (bytes, fits) = match config.kv_memory_bytes {
        Some(asked) => (
            asked,
            budget.left_of_free().is_some_and(|left| asked <= left),
        ),
        None => {
            let left = budget.left().unwrap_or(0);
            (
                left,
                left >= 2 * model.spec.kv_geometry().block_bytes() as u64,
            )
        }
    };
    if fits {
        return Ok(bytes);
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    let why = match config.kv_memory_bytes {
        Some(asked) => format!(
            "--kv-memory asks for {:.2} GiB; {:.2} GiB are left of what is free",
            gib(asked),
            gib(budget.left_of_free().unwrap_or(0))
        ),
        None => format!(
            "the KV cache needs at least {:.2} GiB",
            gib(2 * model.spec.kv_geometry().block_bytes() as u64)
        ),
    };
    let device = config.device.description();
    Err(DeviceError::Memory {
        device,
        budget,
        why,
    }
    .into())
}

/// The pool that `bytes` of KV memory make.
///
/// # Errors
/// When they do not hold two blocks: one to write while one is read.
pub fn pool(model: &LoadedModel, bytes: u64, prefix_cache: bool) -> Result<PoolConfig, StartError> {
    let geometry = model.spec.kv_geometry();
    let layout = geometry.frame_layout();
    let block = geometry.block_bytes() as u64;
    let frames = u32::try_from(bytes / layout.frame_bytes as u64).unwrap_or(u32::MAX);
    if bytes < 2 * block {
        return Err(StartError::KvMemory {
            given: bytes,
            block,
            least: 2 * block,
        });
    }
    let frame_bytes = layout.frame_bytes as u64;
    Ok(PoolConfig {
        prefix_cache,
        max_blocks_per_seq: model.max_context().div_ceil(BLOCK_TOKENS) as u32,
        hash_key: crate::sampling::random_seed(),
        ..PoolConfig::whole(frames, frame_bytes, layout.frames_per_sub_block as u32)
    })
}

/// Tokens that a sequence may hold, on a pool that keeps `kept` frames for itself, where so
/// many recent blocks stay at 16 bit.
///
/// # Errors
/// When more are asked for than the model or the pool allows.
pub(super) fn max_context(
    model: &LoadedModel,
    pool: &PoolConfig,
    kept: u32,
    recent_blocks: u32,
    asked: Option<usize>,
) -> Result<usize, StartError> {
    let held = longest(pool, kept, recent_blocks);
    let (limit, why) = if model.max_context() <= held {
        (
            model.max_context(),
            "the longest context that the model was made for",
        )
    } else {
        (
            held,
            "what --kv-memory holds of one sequence; give it more memory",
        )
    };
    match asked {
        Some(given) if given > limit => Err(StartError::Context { given, limit, why }),
        Some(given) => Ok(given),
        None => Ok(limit),
    }
}

/// Tokens of the longest sequence that the pool holds alone beside `kept` frames, once all of it
/// has shrunk that may.
fn longest(pool: &PoolConfig, kept: u32, recent_blocks: u32) -> usize {
    let room = u64::from((pool.frames - pool.shrink_reserve()).saturating_sub(kept));
    let fits = |blocks: &u64| {
        let tokens = blocks * BLOCK_TOKENS as u64;
        pool.floor_frames(tokens, MinBits::ANY, recent_blocks) <= room
    };
    let blocks = (1..=u64::from(pool.max_blocks_per_seq)).take_while(fits);
    blocks.last().unwrap_or(0) as usize * BLOCK_TOKENS
}
