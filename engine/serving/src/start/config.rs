//! What an engine is started with.

use std::path::PathBuf;
use std::time::Duration;

use ebb_kernels::weight_formats::Quantisation;
use ebb_models::model::LoadFormat;
use ebb_scheduler::{Admission, Mode};

use super::memory::GPU_MEMORY_UTILIZATION;
use crate::client_memory::ClientMemory;
use crate::device::Device;
use crate::kv_plan::{DEFAULT_FLOOR, KvSource};

/// What to serve and with how much.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// A known name, a directory, a .gguf file, or a name in the cache of Hugging Face's tools.
    pub model: String,
    /// Where fetched models are kept; the user's cache directory when absent.
    pub cache_dir: Option<PathBuf>,
    /// Where the values of the weights come from.
    pub load_format: LoadFormat,
    /// What plain weights of linear layers, or of experts alone, are quantised to as they are
    /// loaded.
    pub quantization: Option<Quantisation>,
    /// See [`BackendOptions::expand_weights`](crate::device::BackendOptions).
    pub expand_weights: bool,
    /// A file whose chat template takes the place of the model's own.
    pub chat_template: Option<PathBuf>,
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
    /// Most queued requests, without those that have a free batch slot.
    pub max_waiting: usize,
    /// See [`ebb_scheduler::Config::priority_margin`].
    pub priority_margin: Option<u32>,
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
    /// See [`ebb_scheduler::Config::live_bytes_max`].
    pub live_bytes_max: u64,
    /// In static mode, tokens of a prompt that read each other at 16 bit, a multiple of 128; what
    /// the KV memory has room for if `None`.
    pub static_chunk: Option<u32>,
    /// Whether a GPU computes every row the same to the bit, whoever shares its step; slower.
    pub batch_invariant: bool,
    /// A new file that the trajectory of every answer is logged to ([`crate::trajectory`]).
    pub trajectory_log: Option<PathBuf>,
    /// What clients may make the engine hold beside the KV cache.
    pub client_memory: ClientMemory,
    /// Without a step for so long, while requests wait, the engine counts as hung; `None`: never.
    pub hang_timeout: Option<Duration>,
    /// Compute threads.
    pub threads: usize,
    /// Names that clients may use, of which metrics see the first; the model's own when empty.
    pub served_names: Vec<String>,
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
            quantization: None,
            expand_weights: false,
            chat_template: None,
            device: Device::Cpu,
            kv_memory_bytes: Some(kv_memory_bytes),
            gpu_memory_utilization: GPU_MEMORY_UTILIZATION,
            max_context: None,
            max_running: 256,
            max_waiting: 1024,
            priority_margin: None,
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
            client_memory: ClientMemory::unlimited(),
            hang_timeout: Some(Device::Cpu.hang_timeout_default()),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            served_names: Vec::new(),
        }
    }
}
