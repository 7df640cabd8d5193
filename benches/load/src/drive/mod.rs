//! Sends what the workload says when the stage says, and keeps a record of every request.

mod live;
mod log;
mod request;
mod session;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub use live::{Live, Seen};
pub use log::Log;

use crate::protocol::Protocol;
use crate::workload::Workload;

/// A part of a test under one load.
#[derive(Debug, Clone)]
pub struct Stage {
    /// As in tables.
    pub label: String,
    /// Clients, or sessions a second.
    pub load: f64,
    /// What sets the pace.
    pub drive: Drive,
}

/// What sets the pace of a stage.
#[derive(Debug, Clone)]
pub enum Drive {
    /// Clients, each of which sends its next request when it has the answer.
    Closed {
        /// How many.
        clients: usize,
        /// No session begins later.
        duration: Duration,
    },
    /// Sessions begin when they are to, whatever has become of the others.
    Open {
        /// Since the stage began, in order.
        times: Vec<Duration>,
    },
}

/// Bounds of a test.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Sessions of a stage.
    pub sessions: usize,
    /// Requests that the server has at once; more wait here, which their latencies show.
    pub in_flight: usize,
    /// How long a stage waits for the end of its last sessions.
    pub drain: Duration,
    /// The whole test ends after this.
    pub time: Duration,
}

/// What all of a test's requests share.
pub struct Run<P> {
    /// How the server is reached.
    pub protocol: P,
    /// What is asked.
    pub workload: Workload,
    /// Bounds.
    pub limits: Limits,
    /// When the test began.
    pub epoch: Instant,
    /// What is going on.
    pub live: Live,
    /// Where records go.
    pub log: Log,
    /// Turns true when the user has had enough.
    pub interrupted: watch::Receiver<bool>,
}

/// When a stage was, in microseconds since the test began, and what was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub begin_us: u64,
    /// Its end: when the last answer was in, or it was given up.
    pub end_us: u64,
    /// Sessions that do not fit the server's context.
    pub unfit: u64,
    /// Whether the test's time or the user ended it before all was sent.
    pub cut_short: bool,
}

impl<P: Protocol> Run<P> {
    /// Runs a stage to its end.
    pub async fn stage(self: &Arc<Self>, index: usize, stage: &Stage) -> Span {
        let begin = Instant::now();
        let (stop, stopped) = watch::channel(false);
        let clients = Arc::new(session::Clients {
            run: self.clone(),
            stage: index,
            permits: Semaphore::new(self.limits.in_flight),
            end: begin + self.sending(stage),
            stopped,
            next: Default::default(),
            unfit: Default::default(),
        });
        let mut tasks = JoinSet::new();
        let cut_short = tokio::select! {
            () = start(&clients, stage, begin, &mut tasks) => false,
            () = self.cut() => true,
        };
        let drained = begin + self.sending(stage) + self.limits.drain;
        let cut_short = cut_short
            || tokio::select! {
                () = all(&mut tasks) => false,
                () = tokio::time::sleep_until(drained.into()) => false,
                () = self.cut() => true,
            };
        // What has not ended now is recorded as unfinished.
        let _ = stop.send(true);
        all(&mut tasks).await;
        Span {
            begin_us: self.since(begin),
            end_us: self.since(Instant::now()),
            unfit: clients.unfit.load(std::sync::atomic::Ordering::Relaxed),
            cut_short,
        }
    }

    /// How long new sessions begin.
    fn sending(&self, stage: &Stage) -> Duration {
        match &stage.drive {
            Drive::Closed { duration, .. } => *duration,
            Drive::Open { times } => times.last().copied().unwrap_or_default(),
        }
    }

    /// Resolves when the test's time is over or the user interrupts it.
    async fn cut(&self) {
        let mut interrupted = self.interrupted.clone();
        let interrupted = async {
            if interrupted.wait_for(|yes| *yes).await.is_err() {
                // Nobody is left who could.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until((self.epoch + self.limits.time).into()) => {}
            () = interrupted => {}
        }
    }

    /// Microseconds since the test began.
    fn since(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_micros() as u64
    }
}

async fn start<P: Protocol>(
    clients: &Arc<session::Clients<P>>,
    stage: &Stage,
    begin: Instant,
    tasks: &mut JoinSet<()>,
) {
    match &stage.drive {
        Drive::Closed { clients: count, .. } => {
            for _ in 0..*count {
                tasks.spawn(clients.clone().one_after_the_other(begin));
            }
        }
        Drive::Open { times } => {
            for (number, at) in times.iter().enumerate() {
                let at = begin + *at;
                tokio::time::sleep_until(at.into()).await;
                tasks.spawn(clients.clone().one(number as u64, at));
                // Keeps the set as small as what is in flight.
                while tasks.try_join_next().is_some() {}
            }
        }
    }
}

async fn all(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}
