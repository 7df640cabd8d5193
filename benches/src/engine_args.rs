//! Flags of benchmarks that start an engine.

use std::time::Instant;

use ebb_kernels::weight_formats::Quantisation;
use ebb_models::model::LoadFormat;
use ebb_scheduler::Mode;
use ebb_serving::core::EngineHandle;
use ebb_serving::device::{Device, DeviceChoice};
use ebb_serving::kv_plan::{DEFAULT_FLOOR, KvSource};
use ebb_serving::{EngineConfig, GPU_MEMORY_UTILIZATION};

use crate::simulate::setup::mode_named;
use crate::simulate::size::Size;

/// The model and what it may use.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Model: a directory with a config.json is enough with --load-format dummy
    #[arg(
        long,
        value_name = "NAME|DIR|FILE",
        default_value = "benches/data/llama-3.1-8b"
    )]
    pub model: String,
    /// Quantise the linear layers of plain weights while they are loaded: fp8 or int4; or experts
    /// alone: mxfp4
    #[arg(long, value_name = "FORMAT")]
    pub quantization: Option<Quantisation>,
    /// Expand quantised weights to bf16 while they are loaded
    #[arg(long)]
    pub expand_weights: bool,
    /// Where to compute: cpu, cuda, cuda:N or auto
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// Memory of the KV cache [default: what the device has left; 1GiB on the CPU]
    #[arg(long, value_name = "SIZE")]
    pub kv_memory: Option<Size>,
    /// Share of the GPU's memory that may be used
    #[arg(long, value_name = "SHARE", default_value_t = GPU_MEMORY_UTILIZATION)]
    pub gpu_memory_utilization: f64,
    /// What gives way when memory is full [default: progressive where the device can shrink pages,
    /// else preempt-only]
    #[arg(long, value_parser = mode_named)]
    pub kv_mode: Option<Mode>,
    /// Formats that blocks shrink to
    #[arg(long, value_name = "SPEC", default_value = DEFAULT_FLOOR)]
    pub kv_floor: String,
    /// KV memory that one step may rewrite to shrink it [default: the device's]
    #[arg(long, value_name = "SIZE")]
    pub kv_shrink_rate: Option<Size>,
    /// KV memory that running requests fill before they shrink though there is room [default: all]
    #[arg(long, value_name = "SIZE")]
    pub kv_live_limit: Option<Size>,
    /// Static mode: tokens of a prompt that read each other at 16 bit [default: by the KV memory]
    #[arg(long, value_name = "TOKENS")]
    pub kv_static_chunk: Option<u32>,
    /// Sequences in the batch at once
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_running: usize,
    /// Tokens in one step [default: the device's]
    #[arg(long, value_name = "TOKENS")]
    pub max_step_tokens: Option<usize>,
    /// Every row is computed the same to the bit, whoever shares its step
    #[arg(long)]
    pub batch_invariant: bool,
    /// Threads that compute on the CPU [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

impl EngineArgs {
    /// The engine's configuration, for sequences of at most `context` tokens.
    ///
    /// # Errors
    /// When a specification means nothing or the device cannot be used.
    pub fn config(
        &self,
        load_format: LoadFormat,
        context: Option<usize>,
    ) -> Result<EngineConfig, Box<dyn std::error::Error>> {
        self.config_on(Device::open(self.device)?, load_format, context)
    }

    /// [`EngineArgs::config`] on a device that is open.
    ///
    /// # Errors
    /// When a specification means nothing.
    pub fn config_on(
        &self,
        device: Device,
        load_format: LoadFormat,
        context: Option<usize>,
    ) -> Result<EngineConfig, Box<dyn std::error::Error>> {
        let mut config = EngineConfig::new(&self.model, 0);
        config.load_format = load_format;
        config.quantization = self.quantization;
        config.expand_weights = self.expand_weights;
        config.kv_memory_bytes = self.kv_memory.map(|size| size.0);
        config.gpu_memory_utilization = self.gpu_memory_utilization;
        config.kv_mode = self.kv_mode;
        config.kv_source = KvSource::Floor(self.kv_floor.parse()?);
        config.max_context = context;
        config.max_running = self.max_running;
        config.max_step_tokens = self.max_step_tokens.unwrap_or(device.step_tokens_default());
        let rate = self.kv_shrink_rate.map(|size| size.0);
        config.shrink_bytes_max = rate.unwrap_or(device.shrink_bytes_default());
        config.live_bytes_max = self.kv_live_limit.map_or(u64::MAX, |size| size.0);
        config.static_chunk = self.kv_static_chunk;
        config.batch_invariant = self.batch_invariant;
        config.threads = self.threads.unwrap_or(config.threads);
        config.device = device;
        Ok(config)
    }
}

/// Starts an engine, says so, and makes a runtime to ask it from.
///
/// # Errors
/// When the engine does not start.
pub(crate) fn start(
    config: EngineConfig,
) -> Result<(EngineHandle, tokio::runtime::Runtime), Box<dyn std::error::Error>> {
    let begin = Instant::now();
    let engine = ebb_serving::start(config)?;
    eprintln!(
        "{} on {}, ready after {:.1} s",
        engine.model().description,
        engine.model().device,
        begin.elapsed().as_secs_f64()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()?;
    Ok((engine, runtime))
}
