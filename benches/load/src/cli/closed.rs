//! `ebb-load closed`.

use std::time::Duration;

use super::{Common, test, within};
use crate::drive::{Drive, Stage};
use crate::error::LoadError;

/// A fixed number of clients, each of which sends its next request when it has its answer: what can
/// the server do?
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// Clients; several give a stage each
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Load")]
    concurrency: Vec<u32>,
    /// Seconds in which sessions of a stage begin
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 20.0,
        help_heading = "Load"
    )]
    duration: f64,
    #[command(flatten)]
    common: Common,
}

impl Args {
    pub(super) fn run(&self) -> Result<(), LoadError> {
        within("--duration", self.duration, 0.01, 86_400.0)?;
        let duration = Duration::from_secs_f64(self.duration);
        let stages = self.concurrency.iter().map(|&clients| Stage {
            label: match clients {
                1 => "1 client".into(),
                n => format!("{n} clients"),
            },
            load: f64::from(clients),
            drive: Drive::Closed {
                clients: clients as usize,
                duration,
            },
        });
        test(&self.common, None, |_| stages.collect())
    }
}
