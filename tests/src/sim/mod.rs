//! Deterministic simulation of serving: the real scheduler and block manager, and a world made from
//! a seed.
//!
//! A seed chooses limits and a pool (mostly tiny), requests that share prefixes, and faults:
//! cancellations, deadlines, failed and delayed steps, lost samples, blocks that cannot be encoded,
//! full queues, unknown ids. Each seed switches some kinds of event off. Blocks shrink in all
//! modes, in shrink orders of their own. The backend stores what was written where and reads every
//! context back through the block tables; the model is a hash of the context that it reads. So a
//! wrong page gives a wrong answer, and answers must be those of serving one request at a time.
//! When the faults stop, every request must be served and all memory must be free again.
//!
//! | file | what is there |
//! |---|---|
//! | `settings`, `workload` | the world of a seed and its requests |
//! | `world` | the loop: arrivals, cancellations, plans, returning steps |
//! | `device`, `model` | the backend and the language model |
//! | `client`, `rejection` | what clients must see, by their own records |
//! | `plan_rules` | what every plan must satisfy |
//! | `trace` | the digest of all plans and notices |

pub mod client;
pub mod device;
pub mod model;
pub mod plan_rules;
pub mod rejection;
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

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Round in which it failed.
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

/// Simulates one seed. `print` writes each event to standard output.
pub fn run(seed: u64, print: bool) -> Result<Report, Failure> {
    let failure = |round, what| Failure { seed, round, what };
    let mut world = World::new(seed, print).map_err(|what| failure(0, what))?;
    run_world(&mut world).map_err(|what| failure(world.rounds(), what))
}

/// Simulates a world to its end.
///
/// # Errors
/// What went wrong; a panic does not leave.
pub fn run_world(world: &mut World) -> Result<Report, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without words")))
    })
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
    /// Requests rejected.
    pub requests_rejected: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Of these, for priority.
    pub yields: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hit_tokens: u64,
    /// Plans with copies on write.
    pub plans_with_copies: u64,
    /// States that were kept for prefixes.
    pub states_kept: u64,
    /// States that sequences began with.
    pub states_found: u64,
    /// Choices that ended by stop, length, cancellation, deadline and error.
    pub ended: [u64; 5],
    /// Blocks shrunk while a sequence held them.
    pub shrinks_live: u64,
    /// Cached blocks shrunk.
    pub shrinks_cached: u64,
    /// Blocks that could not be shrunk.
    pub shrinks_failed: u64,
    /// Choices that ended after reading something below 16 bit.
    pub degraded: u64,
    /// Requests taken into a full queue because there were free batch slots.
    pub taken_for_free_slots: u64,
    /// Requests rejected in spite of free batch slots that lacked memory, as the next plan showed.
    pub slots_without_memory: u64,
    /// Times that a sequence waited for blocks to shrink.
    pub stalls: u64,
    /// Plans made while blocks in use were hidden behind a sliding window.
    pub hidden: u64,
    /// Plans made while some blocks were trimmed.
    pub trimmed: u64,
    /// Plans that shrink a trimmed block.
    pub shrinks_trimmed: u64,
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
            yields: stats.yields,
            prefix_hit_tokens: stats.prefix_hit_tokens,
            plans_with_copies: report.copies,
            states_kept: report.states_kept,
            states_found: report.states_found,
            ended: report.ended,
            shrinks_live: stats.shrinks_live,
            shrinks_cached: stats.shrinks - stats.shrinks_live,
            shrinks_failed: stats.shrinks_failed,
            degraded: report.degraded,
            hidden: report.hidden,
            trimmed: report.trimmed,
            shrinks_trimmed: report.shrinks_trimmed,
            taken_for_free_slots: report.taken_for_free_slots,
            slots_without_memory: report.slots_without_memory,
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
        self.yields += other.yields;
        self.prefix_hit_tokens += other.prefix_hit_tokens;
        self.plans_with_copies += other.plans_with_copies;
        self.states_kept += other.states_kept;
        self.states_found += other.states_found;
        self.shrinks_live += other.shrinks_live;
        self.shrinks_cached += other.shrinks_cached;
        self.shrinks_failed += other.shrinks_failed;
        self.degraded += other.degraded;
        self.hidden += other.hidden;
        self.trimmed += other.trimmed;
        self.shrinks_trimmed += other.shrinks_trimmed;
        self.taken_for_free_slots += other.taken_for_free_slots;
        self.slots_without_memory += other.slots_without_memory;
        self.stalls += other.stalls;
        for (sum, ended) in self.ended.iter_mut().zip(other.ended) {
            *sum += ended;
        }
    }
}

/// Simulates many seeds on all cores. Returns the lowest failing seed that was found.
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
                    // The other threads finish the seeds they are at.
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
