//! Logs, on standard error.

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use super::error::CliError;

/// How much to say, and how.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub(super) struct LogArgs {
    /// What to log: error, warn, info, debug, trace, or a filter such as info,ebb_serving=debug
    /// [default: info for serve, else warn].
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    /// How to write logs.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// How logs are written.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line, for machines.
    Json,
}

impl LogArgs {
    /// Logs from here on; `default` is the level when none was asked for.
    ///
    /// # Errors
    /// [`CliError::Usage`] for a filter that is none.
    pub(super) fn init(&self, default: &str) -> Result<(), CliError> {
        let filter = self.log.as_deref().unwrap_or(default);
        let filter = EnvFilter::try_new(filter).map_err(|e| {
            CliError::Usage(format!(
                "--log {filter:?} is not a filter ({e}); write info or debug"
            ))
        })?;
        let logs = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let set = match self.log_format {
            LogFormat::Text => logs.with_target(false).try_init(),
            LogFormat::Json => logs.json().flatten_event(true).try_init(),
        };
        set.map_err(|e| CliError::Usage(format!("logs are already set up: {e}")))
    }
}
