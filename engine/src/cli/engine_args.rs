//! Flags that describe the engine, shared by every command that runs a model.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ebb_kernels::weight_formats::Quantisation;
use ebb_models::model::{self, DEFAULT_MODEL};
use ebb_serving::client_memory::ClientMemory;
use ebb_serving::device::{Device, DeviceChoice};
use ebb_serving::{EngineConfig, GPU_MEMORY_UTILIZATION};

use super::error::CliError;
use super::kv_args::KvArgs;
use super::size::ByteSize;

/// The longest that a time in seconds may be.
pub(super) const YEAR: u64 = 365 * 86_400;

/// Which model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelArgs {
    /// A model's name, a Hugging Face directory, a .gguf file, or ORG/NAME[@REVISION][:FILE] of a
    /// model on Hugging Face, such as Qwen/Qwen3-0.6B or ORG/NAME-GGUF:Q4_K_M.
    ///
    /// A model on Hugging Face is served from the cache of its tools, and downloaded into it when
    /// first used. HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT and HF_HUB_OFFLINE mean what they
    /// mean to those tools. FILE is a part of a GGUF file's name.
    ///
    /// The one name known is SmolLM2-135M-Instruct; it is fetched when first used (about 100 MB).
    #[arg(long, short, value_name = "NAME|DIR|FILE", default_value = DEFAULT_MODEL.name)]
    model: String,
    /// The same as --model.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    positional_model: Option<String>,
    /// Directory where fetched models are kept [default: the user's cache directory, and for models
    /// of Hugging Face that of its tools].
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Where the values of the weights come from.
    #[arg(long, value_enum, default_value = "auto")]
    load_format: LoadFormat,
    /// Quantise the linear layers of plain weights while they are loaded: fp8, E4M3 with a scale
    /// for each output; or int4, with a scale and an offset for each group of 128 inputs, 64 or 32
    /// where 128 do not divide a row; or experts alone: mxfp4, E2M1 with a power of two for each 32
    /// inputs. Embedding and output projection stay as they are.
    #[arg(long, value_name = "FORMAT")]
    quantization: Option<Quantisation>,
    /// How quantised weights are held.
    #[arg(long, value_enum, default_value = "packed")]
    weights: Weights,
}

impl ModelArgs {
    /// The model asked for, or the default one.
    pub(super) fn name(&self) -> &str {
        self.positional_model.as_deref().unwrap_or(&self.model)
    }

    /// Where the values of the weights come from.
    pub(super) fn load_format(&self) -> model::LoadFormat {
        self.load_format.into()
    }

    /// What plain weights are quantised to.
    pub(super) fn quantization(&self) -> Option<Quantisation> {
        self.quantization
    }

    /// Whether packed weights are expanded.
    pub(super) fn expand_weights(&self) -> bool {
        self.weights == Weights::Exact
    }
}

/// How quantised weights are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weights {
    /// In their own formats, where the device computes on those.
    Packed,
    /// Expanded to bf16: larger, and computed on as plain weights are.
    Exact,
}

/// Where the values of the weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoadFormat {
    /// The model's files.
    Auto,
    /// Random numbers: to measure any shape; of a directory only config.json is needed.
    Dummy,
}

impl From<LoadFormat> for model::LoadFormat {
    fn from(format: LoadFormat) -> Self {
        match format {
            LoadFormat::Auto => Self::Auto,
            LoadFormat::Dummy => Self::Dummy,
        }
    }
}

/// Which device.
#[derive(Debug, Clone, Args)]
pub(super) struct DeviceArgs {
    /// Where to compute: cpu, cuda, cuda:N for the GPU of that number, or auto: the first GPU if
    /// there is one.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
}

impl DeviceArgs {
    /// Opens the device.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(super) fn open(&self) -> Result<Device, CliError> {
        Ok(Device::open(self.device)?)
    }
}

/// The model and what it may use.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub(super) struct EngineArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    /// Memory for the KV cache, such as 2GiB or 512MiB [default: 1GiB on the CPU; on a GPU what
    /// --gpu-memory-utilization leaves].
    #[arg(long, value_name = "SIZE")]
    pub(super) kv_memory: Option<ByteSize>,
    /// Share of the GPU's memory that may be used, other programs' part included.
    #[arg(long, value_name = "SHARE", default_value_t = GPU_MEMORY_UTILIZATION)]
    pub(super) gpu_memory_utilization: f64,
    /// Tokens that one sequence may hold, prompt and answer together [default: the model's].
    #[arg(long, visible_alias = "max-model-len", value_name = "TOKENS")]
    pub(super) max_context: Option<usize>,
    /// Sequences in the batch at once.
    #[arg(
        long,
        visible_alias = "max-num-seqs",
        value_name = "N",
        default_value_t = 256
    )]
    pub(super) max_running: usize,
    /// Most queued requests; more are refused. Requests with a free batch slot do not count.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) max_waiting: usize,
    /// Where the batch is full, a running request gives its slot to one that is at least so many
    /// levels of priority more urgent [1 if no number is given; without the flag none does]. It
    /// does so once, and is computed again later.
    #[arg(
        long,
        value_name = "LEVELS",
        num_args = 0..=1,
        default_missing_value = "1",
        require_equals = true,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(super) priority_preemption: Option<u32>,
    /// Tokens in one step of the model: long prompts are read in chunks of at most this [default:
    /// 512 on the CPU, 8192 on a GPU].
    #[arg(long, visible_alias = "max-num-batched-tokens", value_name = "TOKENS")]
    pub(super) max_step_tokens: Option<usize>,
    /// Do not keep the KV cache of finished prompts for prompts that begin alike.
    #[arg(
        long,
        visible_alias = "no-enable-prefix-caching",
        overrides_with = "enable_prefix_caching"
    )]
    pub(super) no_prefix_cache: bool,
    /// Keep them, which is the default; the last of the two flags counts.
    #[arg(long, overrides_with = "no_prefix_cache")]
    enable_prefix_caching: bool,
    #[command(flatten)]
    pub(super) kv: KvArgs,
    /// Compute every row the same to the bit whoever shares its step; on a GPU this is slower, the
    /// CPU always does.
    #[arg(long)]
    pub(super) batch_invariant: bool,
    /// Log to this new file which blocks of each answer's KV cache shrank when, with its prompt and
    /// its tokens: `ebb replay` computes the answers again from it, to the bit on the CPU and with
    /// --batch-invariant.
    #[arg(long, value_name = "FILE")]
    pub(super) trajectory_log: Option<PathBuf>,
    /// Seconds without a step, while requests wait, after which liveness probes and gRPC health
    /// fail [default: 30 on a GPU, 300 on the CPU; 0: never]. Must be longer than the longest step.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub(super) hang_timeout: Option<u64>,
    /// A Jinja file that lays out conversations, instead of the model's own chat template.
    #[arg(long, value_name = "FILE")]
    pub(super) chat_template: Option<PathBuf>,
    /// Threads that compute [default: all cores].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Names that clients may use for the model [default: the model's own]; metrics and answers to
    /// requests without a name have the first.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(super) served_model_name: Vec<String>,
}

/// Names of the flags above, for commands that can use a server instead.
pub(super) const ENGINE_FLAGS: [&str; 31] = [
    "model",
    "positional_model",
    "cache_dir",
    "load_format",
    "quantization",
    "weights",
    "device",
    "kv_memory",
    "gpu_memory_utilization",
    "max_context",
    "max_running",
    "max_waiting",
    "priority_preemption",
    "max_step_tokens",
    "no_prefix_cache",
    "enable_prefix_caching",
    "kv_mode",
    "kv_floor",
    "kv_preset",
    "kv_profile",
    "kv_admission",
    "kv_overcommit",
    "kv_shrink_rate",
    "kv_live_limit",
    "kv_static_chunk",
    "batch_invariant",
    "trajectory_log",
    "hang_timeout",
    "chat_template",
    "threads",
    "served_model_name",
];

impl EngineArgs {
    /// The engine's configuration, checked.
    ///
    /// # Errors
    /// [`CliError::Usage`] naming the flag.
    pub(super) fn config(&self) -> Result<EngineConfig, CliError> {
        let at_least_one = |flag: &str, value: Option<usize>| match value {
            Some(0) => Err(CliError::Usage(format!(
                "{flag} is 0; it must be at least 1"
            ))),
            _ => Ok(()),
        };
        at_least_one("--max-running", Some(self.max_running))?;
        at_least_one("--max-waiting", Some(self.max_waiting))?;
        at_least_one("--max-step-tokens", self.max_step_tokens)?;
        at_least_one("--max-context", self.max_context)?;
        at_least_one("--threads", self.threads)?;
        if let Some(given) = self.kv_memory.filter(|given| *given < ByteSize(1 << 20)) {
            return Err(CliError::Usage(format!(
                "--kv-memory is {given}; it must be at least 1MiB"
            )));
        }
        let share = self.gpu_memory_utilization;
        if !(0.01..=1.0).contains(&share) {
            return Err(CliError::Usage(format!(
                "--gpu-memory-utilization is {share}; it must be from 0.01 to 1"
            )));
        }
        let (kv_mode, kv_source) = (self.kv.mode()?, self.kv.source()?);
        let overcommit_percent = self.kv.overcommit()?;
        let device = self.device.open()?;
        let hang_timeout = device.hang_timeout_default();
        Ok(EngineConfig {
            model: self.model.name().to_owned(),
            cache_dir: self.model.cache_dir.clone(),
            load_format: self.model.load_format(),
            quantization: self.model.quantization(),
            expand_weights: self.model.expand_weights(),
            chat_template: self.chat_template.clone(),
            kv_memory_bytes: self.kv_memory.map(|size| size.0),
            gpu_memory_utilization: share,
            max_context: self.max_context,
            max_running: self.max_running,
            max_waiting: self.max_waiting,
            priority_margin: self.priority_preemption,
            max_step_tokens: self.max_step_tokens.unwrap_or(device.step_tokens_default()),
            shrink_bytes_max: self
                .kv
                .kv_shrink_rate
                .map_or(device.shrink_bytes_default(), |rate| rate.0),
            live_bytes_max: self.kv.kv_live_limit.map_or(u64::MAX, |limit| limit.0),
            static_chunk: self.kv.kv_static_chunk,
            device,
            prefix_cache: !self.no_prefix_cache,
            kv_mode,
            kv_source,
            admission: self.kv.kv_admission.into(),
            overcommit_percent,
            batch_invariant: self.batch_invariant,
            trajectory_log: self.trajectory_log.clone(),
            hang_timeout: match self.hang_timeout {
                Some(0) => None,
                Some(seconds) => Some(Duration::from_secs(seconds)),
                None => Some(hang_timeout),
            },
            threads: self.threads.unwrap_or_else(cores),
            client_memory: ClientMemory::unlimited(),
            served_names: self.served_model_name.clone(),
        })
    }
}

/// Threads that the machine runs at once.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
