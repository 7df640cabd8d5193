//! Flags that every load has.

use std::path::PathBuf;
use std::time::Duration;

use super::within;
use crate::drive::Limits;
use crate::error::LoadError;
use crate::protocol::TargetArgs;
use crate::summary::Slo;
use crate::workload::WorkloadArgs;

/// Where the load goes, what it is, how far it may go, and where its figures go.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) slo: Slo,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// How far a test may go.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Bounds")]
pub(crate) struct Bounds {
    /// Sessions of a stage, at most
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub(crate) requests: u32,
    /// Requests that the server has at once, at most; more wait in the client, which their
    /// latencies show
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub(crate) in_flight: u32,
    /// Seconds that a stage waits for the end of its last sessions
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub(crate) drain: f64,
    /// Seconds after which the whole test ends
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    pub(crate) time_limit: f64,
    /// Requests sent one after the other before the test, which do not count
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) warmup: u32,
}

/// Where figures go besides the terminal.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Output {
    /// Write requests.jsonl, summary.json and report.html into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Title of the report
    #[arg(long, value_name = "TEXT", default_value = "Load test")]
    pub(crate) title: String,
    /// Print the summary as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

impl Common {
    /// # Errors
    /// A sentence naming the flag at fault.
    pub(crate) fn check(&self) -> Result<Limits, LoadError> {
        self.workload.check()?;
        within("--slo-ttft-ms", self.slo.ttft_ms, 0.0, 1e9)?;
        within("--slo-itl-ms", self.slo.itl_ms, 0.0, 1e9)?;
        within("--drain", self.bounds.drain, 0.0, 86_400.0)?;
        within("--time-limit", self.bounds.time_limit, 0.0, 86_400.0)?;
        Ok(Limits {
            sessions: self.bounds.requests as usize,
            in_flight: self.bounds.in_flight as usize,
            drain: Duration::from_secs_f64(self.bounds.drain),
            time: Duration::from_secs_f64(self.bounds.time_limit),
        })
    }
}
