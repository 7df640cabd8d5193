//! Flags that describe the engine, shared by every command that runs a model.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::kv_args::KvArgs;
use super::size::ByteSize;
use crate::EngineConfig;
use crate::model::DEFAULT_MODEL;

/// Which model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelArgs {
    /// A model's name, a Hugging Face directory, or a .gguf file.
    ///
    /// The one name known is SmolLM2-135M-Instruct; it is fetched when first used (about 100 MB).
    #[arg(long, short, value_name = "NAME|DIR|FILE", default_value = DEFAULT_MODEL.name)]
    pub(super) model: String,
    /// Directory where fetched models are kept [default: the user's cache directory].
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
}

/// The model and what it may use.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub(super) struct EngineArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Memory for the KV cache, such as 2GiB or 512MiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(super) kv_memory: ByteSize,
    /// Tokens that one sequence may hold, prompt and answer together [default: the model's].
    #[arg(long, value_name = "TOKENS")]
    pub(super) max_context: Option<usize>,
    /// Sequences in the batch at once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) max_running: usize,
    /// Requests that may wait; beyond that new ones are refused.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) max_waiting: usize,
    /// Tokens in one step of the model: long prompts are read in chunks of at most this.
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub(super) max_step_tokens: usize,
    /// Do not keep the KV cache of finished prompts for prompts that begin alike.
    #[arg(long)]
    pub(super) no_prefix_cache: bool,
    #[command(flatten)]
    pub(super) kv: KvArgs,
    /// Threads that compute [default: all cores].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Name that clients and metrics see [default: the model's].
    #[arg(long, value_name = "NAME")]
    pub(super) served_model_name: Option<String>,
}

/// Names of the flags above, for commands that can use a server instead.
pub(super) const ENGINE_FLAGS: [&str; 16] = [
    "model",
    "cache_dir",
    "kv_memory",
    "max_context",
    "max_running",
    "max_waiting",
    "max_step_tokens",
    "no_prefix_cache",
    "kv_mode",
    "kv_floor",
    "kv_profile",
    "kv_admission",
    "kv_overcommit",
    "kv_shrink_rate",
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
        at_least_one("--max-step-tokens", Some(self.max_step_tokens))?;
        at_least_one("--max-context", self.max_context)?;
        at_least_one("--threads", self.threads)?;
        if self.kv_memory < ByteSize(1 << 20) {
            return Err(CliError::Usage(format!(
                "--kv-memory is {}; it must be at least 1MiB",
                self.kv_memory
            )));
        }
        let ModelArgs { model, cache_dir } = self.model.clone();
        Ok(EngineConfig {
            model,
            cache_dir,
            kv_memory_bytes: self.kv_memory.0,
            max_context: self.max_context,
            max_running: self.max_running,
            max_waiting: self.max_waiting,
            max_step_tokens: self.max_step_tokens,
            prefix_cache: !self.no_prefix_cache,
            kv_mode: self.kv.kv_mode.into(),
            kv_source: self.kv.source()?,
            admission: self.kv.kv_admission.into(),
            overcommit_percent: self.kv.overcommit()?,
            shrink_bytes_max: self.kv.kv_shrink_rate.0,
            threads: self.threads.unwrap_or_else(cores),
            served_name: self.served_model_name.clone(),
        })
    }
}

/// Threads that the machine runs at once.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
