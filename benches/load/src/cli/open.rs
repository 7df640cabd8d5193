//! `ebb-load open`.

use std::time::Duration;

use super::{Common, test, within};
use crate::arrivals::{Arrivals, Process};
use crate::drive::{Drive, Stage};
use crate::error::LoadError;

/// Requests at a rate, whether or not earlier ones have been answered: how does the server bear it?
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// Sessions a second; several give a stage each
    #[arg(
        long,
        value_name = "X,..",
        value_delimiter = ',',
        default_value = "1",
        help_heading = "Load"
    )]
    rate: Vec<f64>,
    /// The rate climbs (or falls) in a line to this over each stage
    #[arg(long, value_name = "X", help_heading = "Load")]
    ramp_to: Option<f64>,
    /// How the times between requests are distributed
    #[arg(long, value_enum, default_value = "poisson", help_heading = "Load")]
    arrivals: Process,
    /// Variation of gamma distances, standard deviation over mean: 1 is Poisson, more is burstier
    #[arg(long, value_name = "CV", default_value_t = 2.0, help_heading = "Load")]
    cv: f64,
    /// Seconds of a stage
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30.0,
        help_heading = "Load"
    )]
    duration: f64,
    #[command(flatten)]
    common: Common,
}

impl Args {
    pub(super) fn run(&self) -> Result<(), LoadError> {
        within("--duration", self.duration, 0.01, 86_400.0)?;
        within("--cv", self.cv, 0.05, 20.0)?;
        for rate in &self.rate {
            within("--rate", *rate, 0.0, 1e6)?;
            if self.ramp_to.is_none_or(|to| to == 0.0) && *rate == 0.0 {
                return Err(LoadError::Usage(
                    "--rate is 0; it must be above, or --ramp-to must".into(),
                ));
            }
        }
        within("--ramp-to", self.ramp_to.unwrap_or(0.0), 0.0, 1e6)?;
        let most = self.common.bounds.requests as usize;
        test(&self.common, None, |workload| {
            let stages = self.rate.iter().enumerate().map(|(index, &from)| {
                let to = self.ramp_to.unwrap_or(from);
                let arrivals = Arrivals {
                    process: self.arrivals,
                    cv: self.cv,
                    from,
                    to,
                    duration: Duration::from_secs_f64(self.duration),
                };
                Stage {
                    label: match self.ramp_to {
                        Some(to) => format!("{from} to {to}/s"),
                        None => format!("{from}/s"),
                    },
                    load: (from + to) / 2.0,
                    drive: Drive::Open {
                        times: arrivals.times(most, &mut workload.arrivals(index)),
                    },
                }
            });
            stages.collect()
        })
    }
}
