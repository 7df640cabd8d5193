//! A test from its flags to its figures.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::Common;
use crate::drive::{Drive, Limits, Live, Log, Run, Stage};
use crate::error::LoadError;
use crate::protocol::{Api, Ebb, OpenAi, Protocol};
use crate::record::Record;
use crate::summary::{Figures, Summary, table};
use crate::trace::Trace;
use crate::workload::Workload;
use crate::{progress, report};

/// Runs the stages against the target, writes the figures and prints them.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn test(
    common: &Common,
    trace: Option<Trace>,
    stages: impl FnOnce(&Workload) -> Vec<Stage>,
) -> Result<(), LoadError> {
    let limits = common.check()?;
    let address = common.target.address()?;
    // One thread is enough, and leaves the rest of the machine to the server.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LoadError::Start)?;
    let summary = runtime.block_on(async {
        match common.target.protocol {
            Api::Ebb => {
                let connections = common.target.connections.into();
                let protocol = Ebb::connect(&address, connections).await?;
                measure(protocol, common, limits, trace, stages).await
            }
            Api::OpenAi => {
                // Not a flag: the command is written down with the figures.
                let key = std::env::var("OPENAI_API_KEY").ok();
                let protocol = OpenAi::connect(&address.url, key).await?;
                measure(protocol, common, limits, trace, stages).await
            }
        }
    })?;
    if common.output.json {
        println!("{}", json(&summary));
    } else {
        println!("{}, {}", summary.target.model, summary.target.device);
        print!("{}", table(&summary));
    }
    Ok(())
}

async fn measure<P: Protocol>(
    protocol: P,
    common: &Common,
    limits: Limits,
    trace: Option<Trace>,
    stages: impl FnOnce(&Workload) -> Vec<Stage>,
) -> Result<Summary, LoadError> {
    let target = protocol.target().await?;
    let workload = Workload::new(&common.workload, trace, &target);
    let stages = stages(&workload);
    let (interrupt, interrupted) = watch::channel(false);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            let _ = interrupt.send(true);
        }
        // The sender stays: its end would mean that nobody can interrupt.
        interrupt.closed().await;
    });
    warm_up(&protocol, &workload, common.bounds.warmup, &interrupted).await;
    let out = common.output.out.as_deref();
    let log = match out {
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(LoadError::file("write", folder))?;
            Log::to_file(&folder.join("requests.jsonl"))?
        }
        None => Log::default(),
    };
    let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let run = Arc::new(Run {
        protocol,
        workload,
        limits,
        epoch: Instant::now(),
        live: Live::default(),
        log,
        interrupted,
    });
    let mut figures = Vec::with_capacity(stages.len());
    for (index, stage) in stages.iter().enumerate() {
        run.live.reset();
        let span = tokio::select! {
            span = run.stage(index, stage) => span,
            never = progress::watch(&run.live, stage, index, stages.len()) => match never {},
        };
        figures.push(run.log.with(|records| {
            let records: Vec<&Record> = records.iter().filter(|r| r.stage == index).collect();
            Figures::of(stage, &span, &records, &common.slo)
        }));
        if span.cut_short {
            break;
        }
    }
    run.log.close()?;
    let summary = Summary {
        title: common.output.title.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        command: command_line(),
        started,
        target,
        slo: common.slo,
        stages: figures,
    };
    if let Some(folder) = out {
        let path = folder.join("summary.json");
        std::fs::write(&path, json(&summary) + "\n").map_err(LoadError::file("write", &path))?;
        let page = folder.join("report.html");
        run.log
            .with(|records| report::write(&page, &summary, records))?;
        eprintln!("report: {}", page.display());
    }
    Ok(summary)
}

/// Requests that do not count, one after the other: the first of a server takes longer than any
/// other.
async fn warm_up<P: Protocol>(
    protocol: &P,
    workload: &Workload,
    requests: u32,
    interrupted: &watch::Receiver<bool>,
) {
    if requests == 0 {
        return;
    }
    let run = Arc::new(Run {
        protocol: protocol.clone(),
        workload: workload.clone(),
        limits: Limits {
            sessions: requests as usize,
            in_flight: 1,
            drain: Duration::from_secs(10),
            time: Duration::from_secs(60),
        },
        epoch: Instant::now(),
        live: Live::default(),
        log: Log::default(),
        interrupted: interrupted.clone(),
    });
    let stage = Stage {
        label: "warm-up".into(),
        load: 1.0,
        drive: Drive::Closed {
            clients: 1,
            duration: Duration::from_secs(50),
        },
    };
    // Sessions of a stage that the test does not have.
    run.stage(WARM_UP, &stage).await;
}

/// The stage that the warm-up's sessions are of.
const WARM_UP: usize = 1 << 20;

fn json(summary: &Summary) -> String {
    // A summary has string keys and no numbers but finite ones.
    serde_json::to_string_pretty(summary).unwrap_or_default()
}

/// As a shell would take it.
fn command_line() -> String {
    let quoted = std::env::args().enumerate().map(|(index, word)| {
        let word = match index {
            0 => word.rsplit('/').next().unwrap_or_default().to_owned(),
            _ => word,
        };
        let plain = |c: char| c.is_alphanumeric() || "-_./:,=+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            return word;
        }
        format!("'{}'", word.replace('\'', "'\\''"))
    });
    quoted.collect::<Vec<_>>().join(" ")
}
