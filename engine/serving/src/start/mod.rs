//! From a configuration to a running engine.

mod config;
mod error;
mod memory;
mod memory_lines;

use ebb_block_manager::{BLOCK_TOKENS, PoolConfig};
use ebb_kernels::backend::Backend;
use ebb_kernels::kv::KvGeometry;
use ebb_models::model::LoadedModel;
use ebb_models::tokenizer::ChatTemplate;
use ebb_models::{Opened, open_as};
use ebb_scheduler::{Config, Mode};

use crate::core::{EngineHandle, ModelInfo, Served, real_clock};
use crate::device::{BackendOptions, Device, DeviceError, StepSizes};
use crate::kv_plan::{KvPlan, KvPlanError, static_chunk};
use crate::kv_state::KvFacts;
use crate::metrics::{CacheConfig, Recorder};
use crate::trajectory::{Header, TrajectoryLog};

pub use config::EngineConfig;
pub use error::StartError;
pub use memory::{CPU_KV_MEMORY_BYTES, GPU_MEMORY_UTILIZATION, pool};
use memory::{kv_memory, max_context, states};
use memory_lines::memory_lines;

/// Opens the model, loads it, and starts the engine thread. Blocks while it does; shows progress on
/// a terminal.
///
/// # Errors
/// A [`StartError`] whose sentence says what to change.
pub fn start(config: EngineConfig) -> Result<EngineHandle, StartError> {
    start_on(config, BackendOptions::start)
}

/// A backend, or why there is none.
type Started = Result<Box<dyn Backend>, DeviceError>;

/// [`start`] with what `backend` makes of the options, the model and the number of frames.
///
/// # Errors
/// As there, and those of `backend`.
pub fn start_on(
    config: EngineConfig,
    backend: impl FnOnce(BackendOptions, &LoadedModel, u32) -> Started,
) -> Result<EngineHandle, StartError> {
    let (dir, format) = (config.cache_dir.clone(), config.load_format);
    let mut opened = open_as(&config.model, dir, format, config.quantization)?;
    if let Some(path) = &config.chat_template {
        opened.use_chat_template(path)?;
    }
    let Opened {
        mut model,
        tokenizer,
        template,
    } = opened;
    if let Some(problem) = template.as_ref().and_then(ChatTemplate::problem) {
        tracing::warn!("{problem}; prompts are answered, chats are refused (see --chat-template)");
    }
    for note in &model.notes {
        tracing::warn!("{note}");
    }
    if let Some(positions) = config.max_context {
        model.limit_context(positions);
    }
    config.kv_source.check_model(&model)?;
    let plan = kv_plan(&config, model.spec.kv_geometry())?;
    model
        .fold_key_scales(plan.key_scales.clone())
        .map_err(StartError::KeyScales)?;
    if config.live_bytes_max < u64::MAX && plan.mode != Mode::Progressive {
        let mode = plan.mode.name();
        tracing::warn!(
            "--kv-live-limit does nothing in mode {mode}: only progressive shrinks for it"
        );
    }
    let mut limits = Config {
        max_step_tokens: config.max_step_tokens.max(config.max_running),
        max_running: config.max_running,
        max_waiting: config.max_waiting,
        prefill_chunk: config.max_step_tokens,
        max_logit_rows: config.max_running.max(256),
        mode: plan.mode,
        admission: config.admission,
        priority_margin: config.priority_margin,
        overcommit_percent: config.overcommit_percent,
        shrink_bytes_max: config.shrink_bytes_max,
        live_bytes_max: config.live_bytes_max,
        ..Config::default()
    };
    let mut steps = StepSizes {
        rows: limits.max_step_tokens,
        seqs: limits.max_running,
        states: 0,
        context: config.max_context.unwrap_or(model.max_context()),
        logit_rows: limits.max_logit_rows,
        decode_rows: limits.max_running,
        batch_invariant: config.batch_invariant,
    };
    let kv_bytes = kv_memory(&config, &model, &steps)?;
    let max_running = config.max_running;
    let states = states(&model.spec, kv_bytes, max_running, config.prefix_cache)?;
    let state_bytes = states.map_or(0, |states| states.bytes);
    if let Some(states) = states {
        if states.max_running < max_running {
            tracing::warn!(
                "{} sequences run at once, not {max_running}: their states take half of the KV \
                 memory; give it more (--kv-memory), or lower --max-running",
                states.max_running
            );
        }
        limits.max_running = states.max_running;
        (steps.seqs, steps.decode_rows) = (states.max_running, states.max_running);
        steps.states = (states.kept.first + states.kept.count) as usize;
    }
    let pool_bytes = match &config.device {
        Device::Cuda(device) => {
            let bytes = kv_bytes - state_bytes;
            device.pool_bytes(&model.spec, &steps, &plan.layout, bytes)
        }
        Device::Cpu => kv_bytes - state_bytes,
    };
    let of_model = pool(&model, pool_bytes, config.prefix_cache)?;
    let pool = PoolConfig {
        prefix_cache: of_model.prefix_cache,
        states: states.map(|states| states.kept),
        max_blocks_per_seq: of_model.max_blocks_per_seq,
        hash_key: of_model.hash_key,
        ..plan.pool(of_model.frames)
    };
    limits.static_chunk = config.static_chunk.unwrap_or(static_chunk(&pool));
    limits.recent_permille = plan.recent_permille;
    let max_context = max_context(&model, &pool, &limits, config.max_context)?;
    steps.context = max_context;
    let mut names = config.served_names.clone().into_iter();
    let name = names.next().unwrap_or_else(|| model.name.clone());
    let recorder = Recorder::new(&name, max_context);
    recorder.cache_config(&CacheConfig {
        block_tokens: BLOCK_TOKENS,
        blocks: u64::from(pool.frames / pool.block_frames()),
        prefix_cache: config.prefix_cache,
    });
    recorder.limits(limits.max_running, config.max_waiting);
    let info = ModelInfo {
        description: describe(&model),
        device: config.device.description(),
        name,
        aliases: names.collect(),
        max_context,
        max_running: limits.max_running,
        vocab: model.spec.vocab,
        eos_token_ids: model.end_ids.clone(),
        special: tokenizer.special(),
        has_chat_template: template.as_ref().is_some_and(|t| t.problem().is_none()),
        kv_bytes_per_token: model.spec.kv_geometry().token_bytes() as u64,
    };
    let options = BackendOptions {
        device: config.device.clone(),
        threads: config.threads,
        layout: Some(plan.layout.clone()),
        rotation: plan.rotation,
        expand_weights: config.expand_weights,
        steps,
    };
    let log = config.trajectory_log.as_deref();
    let log = log.map(|path| {
        let exact = config.batch_invariant || matches!(config.device, Device::Cpu);
        let mut header = Header::new(model.identity(), info.device.clone(), exact, &plan);
        header.expand_weights = config.expand_weights;
        TrajectoryLog::create(path, &header).map_err(|cause| StartError::TrajectoryLog {
            path: path.to_owned(),
            cause,
        })
    });
    let log = log.transpose()?;
    let backend = backend(options, &model, pool.frames)?;
    let weights = backend.weight_bytes();
    recorder.weights(&weights);
    for line in memory_lines(&weights, pool_bytes, config.device.in_use()) {
        tracing::info!("{line}");
    }
    tracing::info!(
        model = info.name,
        device = info.device,
        context = max_context,
        kv_bytes,
        kv_mode = plan.mode.name(),
        kv_floor_bits = plan.floor_bits(),
        "ready to serve"
    );
    let max_live = limits.max_running + config.max_waiting;
    let served = Served {
        info,
        tokenizer,
        template,
        generation: model.generation.clone(),
        max_live,
        kv: KvFacts::new(&plan),
        client_memory: config.client_memory.clone(),
        hang_timeout: config.hang_timeout,
        clock: real_clock(),
    };
    Ok(EngineHandle::start(
        served, limits, pool, backend, recorder, log,
    )?)
}

/// The plan asked for, if the device can run its pages and the model is not too small for them; the
/// 16-bit one if none was asked for and that is not so.
fn kv_plan(config: &EngineConfig, geometry: KvGeometry) -> Result<KvPlan, StartError> {
    let mode = config.kv_mode.unwrap_or(Mode::Progressive);
    let plan = KvPlan::new(geometry, mode, &config.kv_source).map_err(StartError::from);
    let checked = plan.and_then(|plan| {
        config.device.check_pages(&plan.layout)?;
        Ok(plan)
    });
    match checked {
        Err(why @ (StartError::Device(_) | StartError::KvPlan(KvPlanError::Layout(_))))
            if config.kv_mode.is_none() =>
        {
            let plan = KvPlan::sixteen_bit(geometry)?;
            let mode = plan.mode.name();
            tracing::info!("the KV cache stays at 16 bit (--kv-mode {mode}): {why}");
            Ok(plan)
        }
        checked => checked,
    }
}

/// Loads the weights into the CPU backend with a pool of `frames`.
///
/// # Errors
/// When memory or the weights fail.
pub fn backend(
    model: &LoadedModel,
    frames: u32,
    threads: usize,
) -> Result<Box<dyn Backend>, DeviceError> {
    BackendOptions::cpu(threads).start(model, frames)
}

fn describe(model: &LoadedModel) -> String {
    let spec = &model.spec;
    format!(
        "{:?}, {:.0} M parameters, {} layers, {}/{} heads of {}, vocabulary {}",
        model.family,
        model.parameters() as f64 / 1e6,
        spec.layers.len(),
        spec.heads().q_heads,
        spec.heads().kv_heads,
        spec.heads().head_dim,
        spec.vocab
    )
}
