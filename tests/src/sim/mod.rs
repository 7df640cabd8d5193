//! Deterministic simulation of serving: the real scheduler and block manager, everything else made
//! of a seed.
//!
//! A seed draws a world (tiny pools, odd limits, some kinds of event switched off), requests that
//! share prefixes, and faults: cancellations, deadlines, failed and delayed steps, lost outputs,
//! blocks that cannot be transcoded, overflowing queues, names that nobody has. Pools shrink in all
//! modes, along schedules of their own. The backend stores what was written where and reads every
//! context back through the block tables; the model is a hash of the context it reads. So a wrong
//! page gives a wrong answer, and the answers must be those of serving one request at a time. When
//! the faults stop, everybody must be served and all memory must come back.

pub mod client;
pub mod device;
pub mod model;
pub mod rng;
pub mod settings;
pub mod trace;
pub mod workload;
pub mod world;

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub use world::{Report, World};

/// A seed whose world went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Round in which it showed.
    pub round: u64,
    /// What went wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, round, what } = self;
        write!(
            f,
            "seed {seed} fails in round {round}: {what}\n\
             replay it: cargo run -p ebb-tests --bin ebb-sim -- --seed {seed} --trace"
        )
    }
}

/// Simulates one seed. `print` tells each event on standard output.
pub fn run(seed: u64, print: bool) -> Result<Report, Failure> {
    let failure = |round, what| Failure { seed, round, what };
    let mut world = World::new(seed, print).map_err(|what| failure(0, what))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| world.live()));
    let outcome = outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without words")))
    });
    outcome.map_err(|what| failure(world.rounds(), what))
}

/// What many seeds did together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Seeds.
    pub seeds: u64,
    /// Rounds of the longest.
    pub rounds_max: u64,
    /// Steps planned.
    pub steps: u64,
    /// Steps that failed.
    pub steps_failed: u64,
    /// Tokens planned.
    pub tokens: u64,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests turned away.
    pub requests_rejected: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens that the prefix cache had.
    pub prefix_hit_tokens: u64,
    /// Plans with copies on write.
    pub plans_with_copies: u64,
    /// Choices that ended by stop, length, cancellation, deadline and error.
    pub ended: [u64; 5],
    /// Blocks shrunk while a sequence held them.
    pub shrinks_live: u64,
    /// Blocks shrunk that only the cache kept.
    pub shrinks_cold: u64,
    /// Blocks that could not be shrunk.
    pub shrinks_failed: u64,
    /// Choices that ended after reading something below 16 bit.
    pub degraded: u64,
    /// Requests taken into a full queue because there were places for them.
    pub taken_for_places: u64,
    /// Requests refused in spite of places that memory kept empty, as the next plan showed.
    pub places_kept_empty: u64,
    /// Times that a sequence waited for others to shrink.
    pub stalls: u64,
}

impl Totals {
    fn of(report: &Report) -> Self {
        let stats = &report.stats;
        Self {
            seeds: 1,
            rounds_max: report.rounds,
            steps: stats.steps,
            steps_failed: stats.steps_failed,
            tokens: stats.tokens_scheduled,
            requests: stats.requests,
            requests_rejected: stats.requests_rejected,
            preemptions: stats.preemptions,
            prefix_hit_tokens: stats.prefix_hit_tokens,
            plans_with_copies: report.copies,
            ended: report.ended,
            shrinks_live: stats.shrinks_live,
            shrinks_cold: stats.shrinks - stats.shrinks_live,
            shrinks_failed: stats.shrinks_failed,
            degraded: report.degraded,
            taken_for_places: report.taken_for_places,
            places_kept_empty: report.places_kept_empty,
            stalls: stats.stalls,
        }
    }

    fn merge(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.rounds_max = self.rounds_max.max(other.rounds_max);
        self.steps += other.steps;
        self.steps_failed += other.steps_failed;
        self.tokens += other.tokens;
        self.requests += other.requests;
        self.requests_rejected += other.requests_rejected;
        self.preemptions += other.preemptions;
        self.prefix_hit_tokens += other.prefix_hit_tokens;
        self.plans_with_copies += other.plans_with_copies;
        self.shrinks_live += other.shrinks_live;
        self.shrinks_cold += other.shrinks_cold;
        self.shrinks_failed += other.shrinks_failed;
        self.degraded += other.degraded;
        self.taken_for_places += other.taken_for_places;
        self.places_kept_empty += other.places_kept_empty;
        self.stalls += other.stalls;
        for (sum, ended) in self.ended.iter_mut().zip(other.ended) {
            *sum += ended;
        }
    }
}

/// Simulates many seeds on all cores. The lowest failing seed found is told.
pub fn run_many(seeds: Range<u64>, print: bool) -> Result<Totals, Failure> {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut totals = Totals::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(totals);
            }
            match run(seed, print) {
                Ok(report) => totals.merge(&Totals::of(&report)),
                Err(failure) => {
                    // The others stop after the seeds that they are at.
                    next.store(seeds.end, Ordering::Relaxed);
                    return Err(failure);
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let outcomes: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|w| w.join().expect("failures are caught"))
            .collect()
    });
    let mut totals = Totals::default();
    let mut worst: Option<Failure> = None;
    for outcome in outcomes {
        match outcome {
            Ok(part) => totals.merge(&part),
            Err(failure) if worst.as_ref().is_none_or(|w| failure.seed < w.seed) => {
                worst = Some(failure);
            }
            Err(_) => {}
        }
    }
    worst.map_or(Ok(totals), Err)
}
