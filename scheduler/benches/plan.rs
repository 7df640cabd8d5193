//! Host time of the scheduler with 256 sequences running and 10,000 requests waiting.
//!
//! `cargo bench -p ebb-scheduler --bench plan`. Limit: 100 µs a plan on two cores.

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use ebb_block_manager::PoolConfig;
use ebb_block_manager::precision::{
    BlockSize, LevelChange, LevelTable, Page, PageLevel, PageSide, ShrinkOrder,
};
use ebb_scheduler::{
    ChoiceOutput, Config, Event, Mode, Notice, Request, RequestId, Scheduler, Stats, StepPlan,
};

const RUNNING: usize = 256;
const WAITING: u64 = 10_000;
/// As in a small model: 16 frames for a sub-block.
const FRAMES_PER_SUB_BLOCK: u32 = 16;
const FRAME_BYTES: u64 = 1 << 15;

/// The levels of a model with 32 layers: every page shrinks to 8 bit, then to 4, then to 2.
fn levels() -> LevelTable {
    let layers = 32;
    let mut changes = Vec::new();
    for bits in [8, 4, 2] {
        for side in [PageSide::V, PageSide::K] {
            for layer in 0..layers {
                let page = Page { layer, side };
                let to = PageLevel { tag: bits, bits };
                changes.push(LevelChange { page, to });
            }
        }
    }
    let order = ShrinkOrder::new(layers, changes).expect("pages only shrink");
    let pages = 2 * u64::from(layers);
    LevelTable::new(&order, |taken| {
        let bits: HashMap<Page, u64> = taken
            .iter()
            .map(|step| (step.page, step.to.bits.into()))
            .collect();
        let sum = bits.values().sum::<u64>() + 16 * (pages - bits.len() as u64);
        let whole = 8 * u64::from(FRAMES_PER_SUB_BLOCK) * FRAME_BYTES;
        let bytes = sum * whole / (16 * pages);
        BlockSize {
            frames: bytes.div_ceil(FRAME_BYTES) as u32,
            bytes,
        }
    })
}

/// A scheduler and what is needed to feed it.
struct Load {
    scheduler: Scheduler,
    next: u64,
    prompt_tokens: u32,
    max_tokens: u32,
    waiting: VecDeque<RequestId>,
    outputs: Vec<ChoiceOutput>,
    notices: Vec<Notice>,
}

impl Load {
    /// `RUNNING` sequences decode and `WAITING` requests wait, in a pool for `pool_tokens` tokens
    /// of each running sequence.
    fn new(prompt_tokens: u32, max_tokens: u32, pool_tokens: u32) -> Self {
        let config = Config {
            max_running: RUNNING,
            max_waiting: 2 * WAITING as usize,
            max_step_tokens: 4096,
            ..Config::default()
        };
        let frames = RUNNING as u32 * pool_tokens / 16 * FRAMES_PER_SUB_BLOCK;
        let pool = PoolConfig::whole(frames, FRAME_BYTES, FRAMES_PER_SUB_BLOCK);
        let mut load = Self::begin(config, pool, prompt_tokens, max_tokens);
        while load.scheduler.stats().running < RUNNING {
            load.step();
        }
        load.step();
        load
    }

    /// The same in a pool where blocks shrink as far as needed.
    fn shrinking(prompt_tokens: u32, max_tokens: u32, pool_tokens: u32) -> Self {
        let config = Config {
            max_running: RUNNING,
            max_waiting: 2 * WAITING as usize,
            max_step_tokens: 4096,
            mode: Mode::Progressive,
            ..Config::default()
        };
        let frames = RUNNING as u32 * pool_tokens / 16 * FRAMES_PER_SUB_BLOCK;
        let pool = PoolConfig {
            levels: levels(),
            ..PoolConfig::whole(frames, FRAME_BYTES, FRAMES_PER_SUB_BLOCK)
        };
        Self::begin(config, pool, prompt_tokens, max_tokens)
    }

    /// Nothing has run yet.
    fn begin(config: Config, pool: PoolConfig, prompt_tokens: u32, max_tokens: u32) -> Self {
        let mut load = Self {
            scheduler: Scheduler::new(config, pool).expect("valid limits"),
            next: 0,
            prompt_tokens,
            max_tokens,
            waiting: VecDeque::new(),
            outputs: Vec::new(),
            notices: Vec::new(),
        };
        for _ in 0..RUNNING as u64 + WAITING {
            load.arrive();
        }
        load
    }

    fn arrive(&mut self) {
        let id = RequestId(self.next);
        // No two prompts share a block.
        let prompt: Vec<u32> = (0..self.prompt_tokens)
            .map(|i| (self.next as u32).wrapping_mul(2_654_435_761) ^ i)
            .collect();
        self.next += 1;
        let mut request = Request::new(id, prompt, self.max_tokens);
        request.priority = (id.0 % 3) as i32;
        self.scheduler.apply(Event::Arrive(request));
        self.waiting.push_back(id);
    }

    fn done(&mut self, plan: StepPlan) {
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        let sampled = plan
            .slices
            .iter()
            .filter(|slice| slice.logits.choices() > 0);
        outputs.extend(sampled.map(|slice| ChoiceOutput {
            request: slice.request,
            choice: slice.choice,
            token: slice.position,
            finish: false,
        }));
        let step = plan.step;
        self.scheduler.apply(Event::StepDone {
            step,
            outputs,
            failed_shrinks: Vec::new(),
        });
        self.scheduler.recycle(plan);
        self.scheduler.drain_notices(&mut self.notices);
        self.notices.clear();
    }

    /// Keeps the queue at its length.
    fn refill(&mut self) {
        while self.scheduler.stats().waiting < WAITING as usize {
            self.arrive();
        }
    }

    fn step(&mut self) {
        let plan = self.scheduler.plan().expect("there is work");
        self.done(plan);
    }
}

/// Decodes only. All sequences are equally long, so all of them enter a new sub-block in the same
/// step, and a new block every 128 steps: `every` picks the steps that are timed.
fn steady(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for (name, every, at) in [
        ("decode", 1, 0),
        ("decode, all enter a sub-block", 16, 0),
        ("decode, all enter a block", 128, 0),
    ] {
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                let mut counted = 0;
                let mut load = Load::new(64, 4000, 4096);
                while counted < iterations {
                    if load.scheduler.stats().steps > 3500 {
                        load = Load::new(64, 4000, 4096);
                    }
                    let start = Instant::now();
                    let plan = black_box(load.scheduler.plan()).expect("there is work");
                    let time = start.elapsed();
                    assert_eq!(plan.slices.len(), RUNNING);
                    let shortest = plan.slices.iter().map(|s| s.position).min();
                    if shortest.is_some_and(|p| p % every == at) {
                        spent += time;
                        counted += 1;
                    }
                    load.done(plan);
                }
                spent
            });
        });
    }
    group.bench_function("decode, with the step's return", |b| {
        b.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            let mut load = Load::new(64, 4000, 4096);
            for _ in 0..iterations {
                if load.scheduler.stats().steps > 3500 {
                    load = Load::new(64, 4000, 4096);
                }
                let start = Instant::now();
                load.step();
                spent += start.elapsed();
            }
            spent
        });
    });
    group.finish();
}

/// Every step eight sequences finish and eight are admitted with prompts of 256 tokens, eight
/// requests arrive and two of those that wait are cancelled.
fn churn(c: &mut Criterion) {
    let mut group = c.benchmark_group("churn");
    for (name, whole) in [("plan", false), ("everything of a step", true)] {
        group.bench_function(name, |b| {
            let mut load = Load::new(256, 32, 4096);
            // Spread the lengths of answers.
            for _ in 0..200 {
                load.step();
                for _ in 0..9 {
                    load.arrive();
                }
            }
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    let start = Instant::now();
                    let missing = WAITING.saturating_sub(load.scheduler.stats().waiting as u64);
                    for _ in 0..missing.min(64) {
                        load.arrive();
                    }
                    for _ in 0..2 {
                        load.arrive();
                        let id = load.waiting.pop_back().expect("it just arrived");
                        load.scheduler.apply(Event::Cancel(id));
                    }
                    let planning = Instant::now();
                    let plan = black_box(load.scheduler.plan()).expect("there is work");
                    let planned = planning.elapsed();
                    load.done(plan);
                    spent += if whole { start.elapsed() } else { planned };
                }
                spent
            });
        });
    }
    group.finish();
}

/// Memory for two thirds of what the running sequences grow to: preemptions all the time.
fn pressure(c: &mut Criterion) {
    c.benchmark_group("pressure").bench_function("plan", |b| {
        let mut load = Load::new(64, 600, 320);
        b.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            // The first calls ask for a few iterations only: too few for the memory to fill.
            for _ in 0..iterations.max(1000) {
                while load.scheduler.stats().waiting < WAITING as usize {
                    load.arrive();
                }
                let start = Instant::now();
                let plan = black_box(load.scheduler.plan()).expect("there is work");
                spent += start.elapsed();
                load.done(plan);
            }
            spent.mul_f64(iterations as f64 / iterations.max(1000) as f64)
        });
        assert!(load.scheduler.stats().preemptions > 0);
    });
}

/// Memory for less than half of what the running sequences grow to: blocks shrink in nearly every
/// step.
fn shrinking(c: &mut Criterion) {
    let mut group = c.benchmark_group("shrinking");
    for (name, whole) in [("plan", false), ("plan, with the step's return", true)] {
        let mut load = Load::shrinking(512, 800, 520);
        for _ in 0..2000 {
            load.refill();
            load.step();
        }
        let before = load.scheduler.stats();
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    load.refill();
                    let start = Instant::now();
                    let plan = black_box(load.scheduler.plan()).expect("there is work");
                    let planned = start.elapsed();
                    load.done(plan);
                    spent += if whole { start.elapsed() } else { planned };
                }
                spent
            });
        });
        let after = load.scheduler.stats();
        assert_eq!(after.preemptions, 0);
        report(name, &before, &after);
    }
    // All sequences are equally long: they fill a block in the same step, and there are shrinks in
    // the next.
    for (name, at, whole) in [
        ("plan, all have sealed a block", 0, false),
        ("plan and return, all seal a block", 127, true),
    ] {
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                // One step of a whole load is timed: few are enough.
                let enough = iterations.min(10);
                for _ in 0..enough {
                    let mut load = lockstep();
                    spent += worst(&mut load, at, whole);
                }
                spent.mul_f64(iterations as f64 / enough as f64)
            });
        });
    }
    group.finish();
}

/// All running sequences began in the same steps, and their memory is about to run out.
fn lockstep() -> Load {
    let mut load = Load::shrinking(8, 2000, 640);
    while load.scheduler.stats().running < RUNNING {
        load.step();
    }
    load
}

/// The longest of the steps in which most sequences are `at` so many tokens of a block, once blocks
/// shrink. Soon after that they fall out of step, as some wait for memory.
fn worst(load: &mut Load, at: u32, whole: bool) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..1000 {
        let start = Instant::now();
        let plan = black_box(load.scheduler.plan()).expect("there is work");
        let planned = start.elapsed();
        let in_phase = plan.slices.iter().filter(|s| s.position % 128 == at);
        let is_counted = in_phase.count() > RUNNING / 4 && load.scheduler.stats().shrinks > 0;
        load.done(plan);
        if is_counted {
            let time = if whole { start.elapsed() } else { planned };
            longest = longest.max(time);
        }
    }
    assert!(longest > Duration::ZERO, "no step had what is to be timed");
    longest
}

fn report(name: &str, before: &Stats, after: &Stats) {
    let steps = (after.steps - before.steps).max(1) as f64;
    println!(
        "{name}: {} running, {:.2} blocks transcoded a step, {:.2} sequences wait in a step",
        after.running,
        (after.shrinks - before.shrinks) as f64 / steps,
        (after.stalls - before.stalls) as f64 / steps,
    );
}

/// Arrivals and cancellations among 10,000 waiting.
fn queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue");
    group.throughput(Throughput::Elements(1));
    group.bench_function("arrive and cancel", |b| {
        let mut load = Load::new(256, 32, 4096);
        let prompt: std::sync::Arc<[u32]> = (0..256).collect();
        b.iter(|| {
            let id = RequestId(load.next);
            load.next += 1;
            let mut request = Request::new(id, prompt.clone(), 32);
            request.priority = (id.0 % 5) as i32 - 2;
            load.scheduler.apply(Event::Arrive(request));
            load.scheduler.apply(Event::Cancel(id));
            load.scheduler.drain_notices(&mut load.notices);
            load.notices.clear();
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    steady(&mut criterion);
    churn(&mut criterion);
    pressure(&mut criterion);
    shrinking(&mut criterion);
    queue(&mut criterion);
    criterion.final_summary();
}
