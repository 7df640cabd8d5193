//! `ebb-load replay`.

use std::path::PathBuf;
use std::time::Duration;

use super::{Common, test, within};
use crate::drive::{Drive, Stage};
use crate::error::LoadError;
use crate::summary::number;
use crate::trace::{Trace, azure};

/// The arrivals and lengths of a recorded trace.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// CSV file of arrival in milliseconds, prompt tokens, generated tokens [default: the Azure
    /// conversation trace]
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    trace: Option<PathBuf>,
    /// Time goes this much faster; several give a stage each [default: 1]
    #[arg(
        long,
        value_name = "F,..",
        value_delimiter = ',',
        help_heading = "Load",
        conflicts_with = "rate"
    )]
    speed: Vec<f64>,
    /// Time goes so fast that as many requests come in a second, on average; several give a stage
    /// each
    #[arg(
        long,
        value_name = "X,..",
        value_delimiter = ',',
        help_heading = "Load"
    )]
    rate: Vec<f64>,
    #[command(flatten)]
    common: Common,
}

impl Args {
    pub(super) fn run(&self) -> Result<(), LoadError> {
        let path = self.trace.clone().unwrap_or_else(azure);
        let trace = Trace::read(&path).map_err(LoadError::Usage)?;
        let requests = (self.common.bounds.requests as usize).min(trace.len());
        let trace = trace.with_requests(requests);
        let own = trace.rate();
        let mut rates = self.rate.clone();
        rates.extend(self.speed.iter().map(|speed| speed * own));
        if rates.is_empty() {
            rates.push(own);
        }
        let stages = rates.iter().map(|&rate| {
            within("the trace's rate (--rate or --speed)", rate, 1e-3, 1e6)?;
            let scaled = trace.clone().with_rate(rate);
            let times = scaled
                .iter()
                .map(|arrival| Duration::from_secs_f64(arrival.at));
            Ok(Stage {
                label: format!("trace at {}/s", number(rate)),
                load: rate,
                drive: Drive::Open {
                    times: times.collect(),
                },
            })
        });
        let stages = stages.collect::<Result<Vec<_>, LoadError>>()?;
        test(&self.common, Some(trace.clone()), |_| stages)
    }
}
