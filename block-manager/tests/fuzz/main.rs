//! Random operations on the pool, each checked against a naive model, the pool's own audit, and a
//! device that reads every token back. Each case switches some kinds of operation off, so that
//! rare states are reached too.

#[path = "../common/mod.rs"]
mod common;
mod coverage;
mod harness;

use std::{cell::RefCell, panic::catch_unwind};

use common::{config, levels, window};
use coverage::Coverage;
use ebb_block_manager::{PoolConfig, precision::MinBits};
use harness::Harness;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};

/// What can happen, and how often it usually does.
const KINDS: [(&str, u16); 9] = [
    ("create", 3),
    ("decode", 3),
    ("prefill", 4),
    ("commit", 8),
    ("release", 2),
    ("fork", 2),
    ("step", 5),
    ("retire", 5),
    ("shrink", 6),
];
/// What must be reached, each more than a hundred times.
const RARE: [&str; 14] = [
    "blocks hidden",
    "blocks trimmed",
    "frames copied on write",
    "copies cancelled",
    "blocks found in the cache",
    "blocks evicted",
    "duplicates published",
    "reservations that did not fit",
    "steps retired out of order",
    "cold blocks shrunk",
    "live blocks shrunk",
    "blocks shrunk under pressure",
    "shrinks failed",
    "blocks too low for a request",
];

/// A kind of operation and three random numbers that say which.
#[derive(Clone, Copy)]
struct Op(usize, u16, u16, u16);

impl Op {
    fn name(self) -> &'static str {
        KINDS[self.0].0
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.name(), self.1, self.2, self.3)
    }
}

/// A whole case: the pool, and what happens to it.
#[derive(Clone, Debug)]
struct Case {
    frames: u32,
    frames_per_sub_block: u32,
    prefix_cache: bool,
    shrinks: bool,
    window: Option<u32>,
    ops: Vec<Op>,
}

impl Case {
    fn config(&self) -> PoolConfig {
        let mut config = config(self.frames, self.frames_per_sub_block);
        config.prefix_cache = self.prefix_cache;
        if self.shrinks {
            let block = config.block_frames();
            config.levels = levels(block);
            (config.protected, config.sink) = match self.frames % 4 {
                0 => (MinBits(16), MinBits(16)),
                1 => (MinBits::ANY, MinBits(16)),
                _ => (MinBits(8), MinBits(8)),
            };
            config.frames += block;
        }
        config.window = self.window.map(|tokens| window(&config, tokens));
        config
    }
}

/// Swarm testing: each case draws how often each kind happens, about a tenth of them never.
fn case(ops: usize) -> impl Strategy<Value = Case> {
    let pool = (
        20..300_u32,
        1..4_u32,
        prop::bool::weighted(0.9),
        any::<bool>(),
        prop::option::of(prop::sample::select(&[1, 17, 100, 128, 129, 130, 300][..])),
    );
    let weights =
        KINDS.map(|(_, often)| prop_oneof![1 => Just(0), 7 => Just(often), 2 => 1..20_u16]);
    let op = (any::<u16>(), any::<u16>(), any::<u16>(), any::<u16>());
    let ops = prop::collection::vec(op, ops);
    (pool, weights, ops).prop_map(
        |((sub_blocks, per, prefix_cache, shrinks, window), weights, ops)| {
            let kinds = weights
                .iter()
                .zip(0..)
                .flat_map(|(&w, kind)| vec![kind; w.into()]);
            let kinds: Vec<usize> = kinds.collect();
            let pick = |kind: u16| kinds.get(usize::from(kind) % kinds.len().max(1));
            Case {
                frames: sub_blocks * per,
                frames_per_sub_block: per,
                prefix_cache,
                shrinks,
                window,
                ops: ops
                    .into_iter()
                    .filter_map(|(k, a, b, c)| Some(Op(*pick(k)?, a, b, c)))
                    .collect(),
            }
        },
    )
}

fn run(case: &Case) -> Result<Coverage, String> {
    let mut harness = Harness::new(case.config());
    for (index, &op) in case.ops.iter().enumerate() {
        let done = harness.apply(op).and_then(|()| harness.compare());
        done.map_err(|e| format!("operation {index} {op:?}: {e}"))?;
    }
    harness.finish()
}

/// The failing case with as few operations as leaving some out can find.
fn reduce(mut case: Case) -> Case {
    let fails = |case: &Case| catch_unwind(|| run(case).is_err()).unwrap_or(true);
    let mut chunk = case.ops.len();
    while chunk > 0 {
        let mut at = 0;
        while at < case.ops.len() {
            let mut less = case.clone();
            less.ops.drain(at..(at + chunk).min(case.ops.len()));
            if fails(&less) {
                case = less;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    case
}

fn fuzz(cases: u32, ops: usize, seed: u8) -> Coverage {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 100_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let coverage = RefCell::new(Coverage::default());
    let result = TestRunner::new_with_rng(config, rng).run(&case(ops), |case| {
        *coverage.borrow_mut() += run(&case).map_err(TestCaseError::fail)?;
        Ok(())
    });
    match result {
        Ok(()) => coverage.into_inner(),
        Err(TestError::Fail(reason, case)) => {
            println!("seed {seed}: {reason}; reduced:\n{:#?}", reduce(case));
            panic!("{reason}");
        }
        Err(abort) => panic!("{abort}"),
    }
}

#[test]
fn the_pool_does_what_the_naive_model_does() {
    let reached = fuzz(480, 600, 1);
    println!("{reached:#?}");
    assert!(reached.of("operations") > 100_000);
    for what in RARE {
        assert!(reached.of(what) > 100, "too few {what}: {reached:#?}");
    }
    for (what, least) in [
        ("duplicates better than the first", 20),
        ("live blocks shrunk beside cached ones", 20),
        ("live blocks shrunk beside a limit", 20),
        // There is more of it in `rules::pressure`.
        ("blocks evicted for shrinks", 0),
    ] {
        assert!(reached.of(what) > least, "too few {what}: {reached:#?}");
    }
}

/// The same for as long as one likes: `cargo test --release -p ebb-block-manager -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn the_pool_does_what_the_naive_model_does_at_length() {
    for seed in 2..12 {
        fuzz(360, 1000, seed);
    }
    // And many short sequences.
    fuzz(100_000, 120, 12);
}
