//! The load generator against a server whose behaviour is known.

mod bounds;
mod classes;
mod omission;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use ebb_load::drive::{Drive, Limits, Live, Log, Run, Span, Stage};
use ebb_load::instant::{Behaviour, InstantServer};
use ebb_load::protocol::{Address, Ebb, Protocol as _};
use ebb_load::record::Record;
use ebb_load::workload::{Workload, WorkloadArgs};
use tokio::sync::watch;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    workload: WorkloadArgs,
}

fn workload_args(flags: &str) -> WorkloadArgs {
    Flags::parse_from(["test"].into_iter().chain(flags.split_whitespace())).workload
}

/// Bounds that nothing here reaches.
const WIDE: Limits = Limits {
    sessions: 1 << 20,
    in_flight: 4096,
    drain: Duration::from_secs(20),
    time: Duration::from_secs(60),
};

/// One stage against a server; `before` is called with the server and the time at which the stage
/// begins.
async fn load(
    behaviour: Behaviour,
    workload: &str,
    limits: Limits,
    drive: Drive,
    before: impl FnOnce(&InstantServer, Instant),
) -> (Vec<Record>, Span) {
    let server = InstantServer::start(behaviour).unwrap();
    let protocol = Ebb::connect(&Address::plain(server.url()), 2)
        .await
        .unwrap();
    let target = protocol.target().await.unwrap();
    let (_interrupt, interrupted) = watch::channel(false);
    let run = Arc::new(Run {
        protocol,
        workload: Workload::new(&workload_args(workload), None, &target),
        limits,
        epoch: Instant::now(),
        live: Live::default(),
        log: Log::default(),
        interrupted,
    });
    before(&server, run.epoch);
    let stage = Stage {
        label: "test".into(),
        load: 1.0,
        drive,
    };
    let span = run.stage(0, &stage).await;
    let mut records = run.log.with(<[Record]>::to_vec);
    records.sort_by_key(|r| (r.session, r.turn));
    let seen = run.live.seen();
    assert_eq!(seen.in_flight, 0);
    assert_eq!(
        seen.tokens,
        records
            .iter()
            .map(|r| u64::from(r.output_tokens()))
            .sum::<u64>()
    );
    (records, span)
}

/// `count` sessions, `gap` after each other.
fn every(gap: Duration, count: u32) -> Drive {
    Drive::Open {
        times: (0..count).map(|n| gap * n).collect(),
    }
}
