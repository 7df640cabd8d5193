//! From a configuration to a running engine.

use std::path::PathBuf;

use ebb_block_manager::{BLOCK_TOKENS, PoolConfig, schedule::Bound};
use ebb_kernels::backend::Backend;
use ebb_kernels::kv::{KvGeometry, LayoutError};
use ebb_models::model::{LoadFormat, LoadedModel};
use ebb_models::{OpenError, Opened, open_as};
use ebb_scheduler::{Admission, Config, Mode, SetupError};
use thiserror::Error;

use crate::core::{EngineHandle, ModelInfo, Served};
use crate::device::{BackendOptions, Device, DeviceError, StepSizes};
use crate::kv_plan::{DEFAULT_FLOOR, KvPlan, KvPlanError, KvSource, static_chunk};
use crate::kv_state::KvFacts;
use crate::metrics::{CacheConfig, Recorder};
use crate::trajectory::{Header, TrajectoryLog};

/// Share of a GPU's memory that is used unless told otherwise.
pub const GPU_MEMORY_UTILIZATION: f64 = 0.9;

/// KV memory on the CPU unless told otherwise.
pub const CPU_KV_MEMORY_BYTES: u64 = 1 << 30;

/// What to serve and with how much.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// A known name, a directory, or a .gguf file.
    pub model: String,
    /// Where fetched models are kept; the user's cache directory when absent.
    pub cache_dir: Option<PathBuf>,
    /// Where the values of the weights come from.
    pub load_format: LoadFormat,
    /// Where it computes.
    pub device: Device,
    /// Bytes for the KV cache. When absent: on a GPU what `gpu_memory_utilization` leaves, on the
    /// CPU 1 GiB.
    pub kv_memory_bytes: Option<u64>,
    /// Share of a GPU's memory that may be used, by all its users together.
    pub gpu_memory_utilization: f64,
    /// Tokens a sequence may hold; the model's own limit, or what the KV memory holds, when absent.
    pub max_context: Option<usize>,
    /// Sequences computed at once.
    pub max_running: usize,
    /// Requests that may wait beyond those that a free place awaits.
    pub max_waiting: usize,
    /// Tokens computed in one step.
    pub max_step_tokens: usize,
    /// Whether prompts share the KV of common beginnings.
    pub prefix_cache: bool,
    /// What gives way when the KV memory is full. When absent: blocks shrink progressively if the
    /// device has kernels for that, else requests are preempted.
    pub kv_mode: Option<Mode>,
    /// How far the KV cache may shrink, and in which order.
    pub kv_source: KvSource,
    /// Whether requests wait for 16-bit room, or shrink others to get in.
    pub admission: Admission,
    /// Share of the pool that may be promised to running requests, in percent.
    pub overcommit_percent: u32,
    /// Bytes of blocks that one step may rewrite to shrink them.
    pub shrink_bytes_max: u64,
    /// See [`Config::live_bytes_max`].
    pub live_bytes_max: u64,
    /// In static mode, tokens of a prompt that read each other at 16 bit, a multiple of 128; what
    /// the KV memory has room for if `None`.
    pub static_chunk: Option<u32>,
    /// Whether a GPU computes every row the same to the bit, whoever shares its step; slower.
    pub batch_invariant: bool,
    /// A new file that the trajectory of every answer is logged to ([`crate::trajectory`]).
    pub trajectory_log: Option<PathBuf>,
    /// Compute threads.
    pub threads: usize,
    /// Name that clients and metrics see; the model's own when absent.
    pub served_name: Option<String>,
}

impl EngineConfig {
    /// A model on the CPU with a KV cache of this many bytes that shrinks progressively to the
    /// default floor, and otherwise what `ebb serve` does by itself.
    pub fn new(model: &str, kv_memory_bytes: u64) -> Self {
        let floor = DEFAULT_FLOOR
            .parse()
            .expect("the default floor is a specification");
        Self {
            model: model.to_owned(),
            cache_dir: None,
            load_format: LoadFormat::Auto,
            device: Device::Cpu,
            kv_memory_bytes: Some(kv_memory_bytes),
            gpu_memory_utilization: GPU_MEMORY_UTILIZATION,
            max_context: None,
            max_running: 256,
            max_waiting: 1024,
            max_step_tokens: Device::Cpu.step_tokens_default(),
            prefix_cache: true,
            kv_mode: None,
            kv_source: KvSource::Floor(floor),
            admission: Admission::Degrade,
            overcommit_percent: 100,
            shrink_bytes_max: Device::Cpu.shrink_bytes_default(),
            live_bytes_max: u64::MAX,
            static_chunk: None,
            batch_invariant: false,
            trajectory_log: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            served_name: None,
        }
    }
}

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

/// Opens the model, loads it, and starts the engine thread. Blocks while it does; shows progress on
/// a terminal.
///
/// # Errors
/// A [`StartError`] whose sentence says what to change.
pub fn start(config: EngineConfig) -> Result<EngineHandle, StartError> {
    let Opened {
        mut model,
        tokenizer,
        template,
    } = open_as(&config.model, config.cache_dir.clone(), config.load_format)?;
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
        overcommit_percent: config.overcommit_percent,
        shrink_bytes_max: config.shrink_bytes_max,
        live_bytes_max: config.live_bytes_max,
        ..Config::default()
    };
    let mut steps = StepSizes {
        rows: limits.max_step_tokens,
        seqs: limits.max_running,
        context: config.max_context.unwrap_or(model.max_context()),
        logit_rows: limits.max_logit_rows,
        decode_rows: limits.max_running,
        batch_invariant: config.batch_invariant,
    };
    let kv_bytes = kv_memory(&config, &model, &steps)?;
    let pool_bytes = match &config.device {
        Device::Cuda(device) => device.pool_bytes(&steps, &plan.layout, kv_bytes),
        Device::Cpu => kv_bytes,
    };
    let pool = PoolConfig {
        positions: plan.positions.clone(),
        protected: plan.protected,
        sink: plan.sink,
        ..pool(&model, pool_bytes, config.prefix_cache)?
    };
    limits.static_chunk = config.static_chunk.unwrap_or(static_chunk(&pool));
    let kept = limits.chunk_frames(&pool);
    let max_context = max_context(&model, &pool, kept, config.max_context)?;
    steps.context = max_context;
    let name = config
        .served_name
        .clone()
        .unwrap_or_else(|| model.name.clone());
    let recorder = Recorder::new(&name, max_context);
    recorder.cache_config(&CacheConfig {
        block_tokens: BLOCK_TOKENS,
        blocks: u64::from(pool.frames / pool.block_frames()),
        prefix_cache: config.prefix_cache,
    });
    recorder.limits(config.max_running, config.max_waiting);
    let info = ModelInfo {
        description: describe(&model),
        device: config.device.description(),
        name,
        max_context,
        vocab: model.spec.vocab,
        eos_token_ids: model.end_ids.clone(),
        has_chat_template: template.is_some(),
        kv_bytes_per_token: model.spec.kv_geometry().token_bytes() as u64,
    };
    let options = BackendOptions {
        device: config.device.clone(),
        threads: config.threads,
        layout: Some(plan.layout.clone()),
        rotation: plan.rotation,
        steps,
    };
    let log = config.trajectory_log.as_deref();
    let log = log.map(|path| {
        let exact = config.batch_invariant || matches!(config.device, Device::Cpu);
        let header = Header::new(model.identity(), info.device.clone(), exact, &plan);
        TrajectoryLog::create(path, &header).map_err(|cause| StartError::TrajectoryLog {
            path: path.to_owned(),
            cause,
        })
    });
    let log = log.transpose()?;
    let backend = options.start(&model, pool.frames)?;
    tracing::info!(
        model = info.name,
        device = info.device,
        context = max_context,
        kv_bytes,
        kv_mode = plan.mode.name(),
        kv_floor_bits = plan.floor_bits(),
        "ready to serve"
    );
    let max_live = config.max_running + config.max_waiting;
    let served = Served {
        info,
        tokenizer,
        template,
        generation: model.generation.clone(),
        max_live,
        kv: KvFacts::new(&plan),
    };
    Ok(EngineHandle::start(
        served, limits, pool, backend, recorder, log,
    )?)
}

/// The plan asked for, if the device can run its pages; the 16-bit one if none was asked for and it
/// cannot.
fn kv_plan(config: &EngineConfig, geometry: KvGeometry) -> Result<KvPlan, StartError> {
    let mode = config.kv_mode.unwrap_or(Mode::Progressive);
    let plan = KvPlan::new(geometry, mode, &config.kv_source)?;
    match config.device.check_pages(&plan.layout) {
        Ok(()) => Ok(plan),
        Err(why) if config.kv_mode.is_none() => {
            let plan = KvPlan::sixteen_bit(geometry)?;
            let mode = plan.mode.name();
            tracing::info!("the KV cache stays at 16 bit (--kv-mode {mode}): {why}");
            Ok(plan)
        }
        Err(why) => Err(why.into()),
    }
}

/// Bytes for the KV cache: what was asked for, if the device has them, or what the device has left.
fn kv_memory(
    config: &EngineConfig,
    model: &LoadedModel,
    steps: &StepSizes,
) -> Result<u64, StartError> {
    let Device::Cuda(device) = &config.device else {
        return Ok(config.kv_memory_bytes.unwrap_or(CPU_KV_MEMORY_BYTES));
    };
    let budget = device.budget(&model.spec, steps, config.gpu_memory_utilization)?;
    for line in budget.lines() {
        tracing::info!("{line}");
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

fn max_context(
    model: &LoadedModel,
    pool: &PoolConfig,
    kept: u32,
    asked: Option<usize>,
) -> Result<usize, StartError> {
    let held = longest(pool, kept);
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
fn longest(pool: &PoolConfig, kept: u32) -> usize {
    let room = u64::from((pool.frames - pool.held_back()).saturating_sub(kept));
    let fits = |blocks: &u64| pool.floor_frames(blocks * BLOCK_TOKENS as u64, Bound::FLOOR) <= room;
    let blocks = (1..=u64::from(pool.max_blocks_per_seq)).take_while(fits);
    blocks.last().unwrap_or(0) as usize * BLOCK_TOKENS
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
