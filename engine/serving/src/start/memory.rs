//! How much KV memory there is, and what fits into it.

use ebb_block_manager::{BLOCK_TOKENS, PoolConfig, StateSlots};
use ebb_kernels::model::ModelSpec;
use ebb_models::model::LoadedModel;
use ebb_scheduler::Config;

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

/// What sequences have beside the KV cache, where a model has recurrent layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StateMemory {
    /// Sequences that run at once: at most as many as there is memory for.
    pub(super) max_running: usize,
    /// Slots of states that are kept for prefixes.
    pub(super) kept: StateSlots,
    /// Bytes of all slots.
    pub(super) bytes: u64,
}

/// The states of up to `max_running` sequences in up to half of `kv_bytes`, and in a fifth of what
/// is left those that are kept for prefixes, or two if half of it holds them. `None`: the model has
/// none.
///
/// # Errors
/// When half of it does not hold the states of one sequence, or a quarter two blocks: what is left
/// for blocks is at least that.
pub(super) fn states(
    spec: &ModelSpec,
    kv_bytes: u64,
    max_running: usize,
    prefix_cache: bool,
) -> Result<Option<StateMemory>, StartError> {
    let state = (spec.state_floats() * size_of::<f32>()) as u64;
    if state == 0 {
        return Ok(None);
    }
    let block = spec.kv_geometry().block_bytes() as u64;
    let least = 2 * state.max(4 * block);
    if kv_bytes < least {
        return Err(StartError::States {
            given: kv_bytes,
            state,
            block,
            least,
        });
    }
    let fit = usize::try_from(kv_bytes / 2 / state).unwrap_or(usize::MAX);
    let max_running = max_running.min(fit);
    let left = kv_bytes - max_running as u64 * state;
    let kept = match prefix_cache {
        true => {
            let least = (left / 2 / state).min(2);
            (left / 5 / state).clamp(least, KEPT_STATES_MAX)
        }
        false => 0,
    };
    let kept = StateSlots {
        first: max_running as u32,
        count: kept as u32,
    };
    Ok(Some(StateMemory {
        max_running,
        kept,
        bytes: (max_running as u64 + u64::from(kept.count)) * state,
    }))
}

/// Most states that are kept for prefixes.
const KEPT_STATES_MAX: u64 = 1024;

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

/// Steps that a backend has in flight at most.
const STEPS_IN_FLIGHT_MAX: usize = 2;

/// Tokens that a sequence may hold, on a pool that a scheduler with these limits hands out.
///
/// # Errors
/// When more are asked for than the model or the pool allows.
pub(super) fn max_context(
    model: &LoadedModel,
    pool: &PoolConfig,
    limits: &Config,
    asked: Option<usize>,
) -> Result<usize, StartError> {
    let held = longest(pool, limits);
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

/// Tokens of the longest sequence that the pool holds alone, once all of it has shrunk that may.
fn longest(pool: &PoolConfig, limits: &Config) -> usize {
    let limits = Config {
        max_in_flight: STEPS_IN_FLIGHT_MAX,
        ..limits.clone()
    };
    let kept = limits.chunk_frames(pool);
    let recent_blocks = limits.recent_blocks(usize::MAX);
    let room = u64::from((pool.frames - pool.shrink_reserve()).saturating_sub(kept));
    let fits = |blocks: &u64| {
        let tokens = blocks * BLOCK_TOKENS as u64;
        limits.frames_at_longest(pool, tokens, recent_blocks) <= room
    };
    let blocks = (1..=u64::from(pool.max_blocks_per_seq)).take_while(fits);
    blocks.last().unwrap_or(0) as usize * BLOCK_TOKENS
}

#[cfg(test)]
mod tests {
    use ebb_kernels::kv::{KvGeometry, WindowedLayers};
    use ebb_kernels::model::{GatedDeltaSpec, Mixer, RecurrentSpec, Rope, UniformModel};
    use ebb_scheduler::{Event, Mode, Notice, RejectReason, Request, RequestId, Scheduler};

    use super::*;
    use crate::kv_plan::{DEFAULT_FLOOR, KvPlan, KvSource, static_chunk};

    #[test]
    fn states_take_half_of_the_kv_memory_at_most() {
        let mut spec = UniformModel {
            hidden: 64,
            layers: 2,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 32,
            intermediate: 64,
            vocab: 100,
            rope: Rope::new(vec![1.0; 16], 1.0),
            max_positions: 64,
            ..UniformModel::default()
        }
        .spec();
        assert_eq!(states(&spec, 1 << 20, 8, true).unwrap(), None);
        spec.layers[1].mixer = Mixer::Recurrent(RecurrentSpec::GatedDelta(GatedDeltaSpec {
            k_heads: 16,
            v_heads: 16,
            k_dim: 256,
            v_dim: 256,
            taps: 2,
            norm_eps: 1e-6,
            doubled: false,
        }));
        // One token of all queries, keys and values, and a matrix of each head.
        let state = 4 * (3 * 16 * 256 + 16 * 256 * 256);
        let of = |states: u64, max_running, prefix_cache| {
            let found = super::states(&spec, states * state, max_running, prefix_cache);
            let found = found.unwrap().unwrap();
            let slots = found.max_running as u64 + u64::from(found.kept.count);
            assert_eq!(found.bytes, slots * state);
            assert_eq!(found.kept.first as usize, found.max_running);
            (found.max_running, found.kept.count)
        };
        assert_eq!(of(100, 8, true), (8, 18));
        assert_eq!(of(100, 80, true), (50, 10));
        assert_eq!(of(9, 4, true), (4, 2));
        assert_eq!(of(6, 4, true), (3, 1));
        assert_eq!(of(100, 80, false), (50, 0));
        let error = super::states(&spec, 2 * state - 1, 8, true).unwrap_err();
        let (said, least) = (error.to_string(), 2 * state);
        assert!(
            said.ends_with(&format!("give at least {least} bytes")),
            "{said}"
        );
        // A smaller state, so that it is the blocks that do not fit: eight of 32 KiB.
        if let Mixer::Recurrent(RecurrentSpec::GatedDelta(delta)) = &mut spec.layers[1].mixer {
            (delta.k_dim, delta.v_dim) = (16, 16);
        }
        let least = 8 * spec.kv_geometry().block_bytes() as u64;
        super::states(&spec, least, 8, true).unwrap();
        super::states(&spec, least - 1, 8, true).unwrap_err();
    }

    /// Whether a scheduler takes a request for the longest answer that ends at so many tokens.
    fn is_accepted(limits: &Config, pool: &PoolConfig, tokens: usize) -> bool {
        let mut scheduler = Scheduler::new(limits.clone(), pool.clone()).unwrap();
        // The last token sampled is never computed.
        let request = Request::new(RequestId(1), [7; 16], (tokens - 16 + 1) as u32);
        scheduler.apply(Event::Arrive(request));
        let mut notices = Vec::new();
        scheduler.drain_notices(&mut notices);
        let no_memory = |notice: &Notice| {
            let Notice::Rejected { reason, .. } = notice else {
                return false;
            };
            assert!(matches!(reason, RejectReason::NeverFits { .. }), "{reason}");
            true
        };
        !notices.iter().any(no_memory)
    }

    #[test]
    fn a_scheduler_accepts_the_longest_context_and_no_block_more() {
        let windows = [None, Some(512)].map(|layer| [None, layer, layer, layer]);
        let windowed = windows.map(|layers| WindowedLayers::of(layers.into_iter()));
        for (windowed, steps_in_flight) in windowed
            .into_iter()
            .flat_map(|w| [(w, 1), (w, STEPS_IN_FLIGHT_MAX)])
        {
            let geometry = KvGeometry {
                layers: 4,
                kv_heads: 2,
                head_dim: 64,
                windowed,
            };
            for mode in [Mode::PreemptOnly, Mode::Static, Mode::Progressive] {
                let source = KvSource::Floor(DEFAULT_FLOOR.parse().unwrap());
                let plan = KvPlan::new(geometry, mode, &source).unwrap();
                for blocks in [40, 41, 200] {
                    let pool = PoolConfig {
                        max_blocks_per_seq: 1 << 16,
                        ..plan.pool(blocks * plan.levels.level(0).size.frames)
                    };
                    let limits = Config {
                        mode,
                        max_in_flight: steps_in_flight,
                        static_chunk: static_chunk(&pool),
                        ..Config::default()
                    };
                    let tokens = longest(&pool, &limits);
                    let at = format!("{mode:?}, {blocks} blocks, {windowed:?}: {tokens} tokens");
                    assert!(tokens > 0, "{at}");
                    assert!(is_accepted(&limits, &pool, tokens), "{at}");
                    let more = tokens + BLOCK_TOKENS;
                    let is_most = steps_in_flight == STEPS_IN_FLIGHT_MAX;
                    assert!(!is_most || !is_accepted(&limits, &pool, more), "{at}");
                }
            }
        }
    }
}
