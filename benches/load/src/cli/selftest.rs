//! `ebb-load selftest`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser as _;
use tokio::sync::watch;

use super::within;
use crate::drive::{Drive, Limits, Live, Log, Run, Stage};
use crate::error::LoadError;
use crate::instant::{Behaviour, InstantServer};
use crate::protocol::{Address, Ebb, Protocol as _};
use crate::summary::number;
use crate::workload::{Workload, WorkloadArgs};

/// Measure the load generator itself: how many tokens a second does one thread of it receive from a
/// server that has its answers ready?
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// Seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    duration: f64,
    /// Answers that are read at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=4096)
    )]
    concurrency: u32,
    /// Fail when the thread receives fewer tokens for each second that it computes
    #[arg(long, value_name = "N", default_value_t = 50_000.0)]
    at_least: f64,
}

/// What the load generator can do.
#[derive(Debug, Clone, Copy)]
struct Ability {
    tokens: u64,
    wall: Duration,
    /// What its one thread computed; none where the system does not tell.
    busy: Option<Duration>,
}

#[derive(clap::Parser)]
struct Plain {
    #[command(flatten)]
    workload: WorkloadArgs,
}

impl Args {
    pub(super) fn run(&self) -> Result<(), LoadError> {
        within("--duration", self.duration, 0.1, 3600.0)?;
        let ability = self.measure()?;
        let per = |time: Duration| ability.tokens as f64 / time.as_secs_f64();
        println!(
            "{} tokens/s received over {} s by one thread from a server beside it",
            number(per(ability.wall)),
            number(ability.wall.as_secs_f64())
        );
        let able = match ability.busy {
            Some(busy) => {
                println!(
                    "{} tokens for each second that the thread computed ({} % of the time)",
                    number(per(busy)),
                    number(100.0 * busy.as_secs_f64() / ability.wall.as_secs_f64())
                );
                per(busy)
            }
            None => per(ability.wall),
        };
        if able < self.at_least {
            return Err(LoadError::Missed(format!(
                "{} tokens/s is less than --at-least {}; use a release build on a faster core",
                number(able),
                self.at_least
            )));
        }
        Ok(())
    }

    fn measure(&self) -> Result<Ability, LoadError> {
        let server = InstantServer::start(Behaviour::default()).map_err(LoadError::Start)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(LoadError::Start)?;
        runtime.block_on(async {
            let protocol = Ebb::connect(&Address::plain(server.url()), 4).await?;
            let target = protocol.target().await?;
            let plain = Plain::parse_from(["", "--prompt-tokens=16", "--output-tokens=500"]);
            let duration = Duration::from_secs_f64(self.duration);
            let (_interrupt, interrupted) = watch::channel(false);
            let run = Arc::new(Run {
                protocol,
                workload: Workload::new(&plain.workload, None, &target),
                limits: Limits {
                    sessions: usize::MAX,
                    in_flight: self.concurrency as usize,
                    drain: Duration::ZERO,
                    time: duration * 2,
                },
                epoch: Instant::now(),
                live: Live::default(),
                log: Log::default(),
                interrupted,
            });
            let stage = Stage {
                label: "selftest".into(),
                load: self.concurrency.into(),
                drive: Drive::Closed {
                    clients: self.concurrency as usize,
                    duration,
                },
            };
            let (begin, before) = (Instant::now(), computed());
            run.stage(0, &stage).await;
            let busy = computed().zip(before).map(|(after, before)| after - before);
            Ok(Ability {
                tokens: run.live.seen().tokens,
                wall: begin.elapsed(),
                busy,
            })
        })
    }
}

/// Time for which this thread has computed (Linux: the first number of its `schedstat`,
/// nanoseconds).
fn computed() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}
