//! Host time of planning with the pool, for the shape of Llama-3.1-8B: 2 MiB a sub-block, in 16
//! frames. The pool has been filled before, so that new blocks evict cached ones.
//!
//! `cargo bench -p ebb-block-manager`
#![allow(missing_docs, reason = "criterion's macros make public functions")]

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/common/trace.rs"]
mod trace;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use ebb_block_manager::{
    BLOCK_TOKENS, BlockManager, PoolConfig, PrefixCursor, SeqId, StepId, TableDelta,
    precision::MinBits,
};

const RUNNING: u64 = 256;
const WAITING: u64 = 10_000;
/// 32 layers × K and V × 8 heads × 16 tokens × 128 dimensions × 2 bytes, in 16 frames.
const FRAME_BYTES: u64 = 32 * 2 * 8 * 16 * 128 * 2 / 16;
/// Sequences end here; 256 of them then hold 20 GiB.
const LEN_MAX: usize = 640;

fn config(gib: u64) -> PoolConfig {
    PoolConfig::whole(((gib << 30) / FRAME_BYTES) as u32, FRAME_BYTES, 16)
}

fn pool(gib: u64) -> BlockManager {
    BlockManager::new(config(gib)).expect("the shape is valid")
}

/// Token ids that differ between sequences and positions.
fn token(seq: u64, position: usize) -> u32 {
    (seq.wrapping_mul(0x9e37_79b9) as u32).wrapping_add(position as u32 * 7) % 128_256
}

/// 256 sequences that decode in step with each other.
struct Decoding {
    pool: BlockManager,
    seqs: std::ops::Range<u64>,
    /// Tokens allocated to each; all but the last are committed.
    len: usize,
    step: u64,
    deltas: Vec<TableDelta>,
}

impl Decoding {
    /// A pool that has been through enough sequences to be full of cached blocks.
    fn warm() -> Self {
        let pool = pool(40);
        let mut new = Self {
            pool,
            seqs: 0..0,
            len: LEN_MAX,
            step: 0,
            deltas: Vec::new(),
        };
        new.time(6 * LEN_MAX as u64, |_| true);
        new
    }

    /// All end; what they computed stays cached, and as many others start.
    fn restart(&mut self) {
        self.seqs
            .clone()
            .for_each(|seq| self.pool.release(SeqId(seq)));
        self.seqs = self.seqs.end..self.seqs.end + RUNNING;
        for seq in self.seqs.clone() {
            self.pool.create(SeqId(seq), &[], 0);
            self.pool.grow(SeqId(seq), 1).expect("the cache makes room");
        }
        self.len = 1;
    }

    /// Plans one step: the token that was computed is committed, the next one gets memory.
    fn plan(&mut self) {
        let mut needed = 0;
        for seq in self.seqs.clone() {
            let id = SeqId(seq);
            self.pool.commit(id, &[token(seq, self.len - 1)]);
            needed += self.pool.frames_needed(id, self.len + 1);
        }
        assert!(needed <= self.pool.available());
        self.len += 1;
        for seq in self.seqs.clone() {
            self.pool
                .grow(SeqId(seq), self.len)
                .expect("it was just found to fit");
        }
        self.deltas.clear();
        self.pool.drain_deltas(&mut self.deltas);
        self.step += 1;
        self.pool.begin_step(StepId(self.step));
        self.pool.retire_step(StepId(self.step));
    }

    /// Time of `count` plans; those to a length that is not `timed` happen between them.
    fn time(&mut self, count: u64, timed: impl Fn(usize) -> bool) -> Duration {
        let (mut total, mut left) = (Duration::ZERO, count);
        while left > 0 {
            if self.len == LEN_MAX {
                self.restart();
            }
            let start = Instant::now();
            self.plan();
            if timed(self.len) {
                total += start.elapsed();
                left -= 1;
            }
        }
        total
    }
}

fn decode(c: &mut Criterion) {
    let mut decoding = Decoding::warm();
    let mut group = c.benchmark_group("plan 256");
    // Each seals and publishes its block and takes the first sub-block of a new one.
    let crosses = |len| len > BLOCK_TOKENS && len % BLOCK_TOKENS == 1;
    group.bench_function("all cross into a new block", |b| {
        b.iter_custom(|n| decoding.time(n, crosses));
    });
    group.bench_function("all take a sub-block", |b| {
        b.iter_custom(|n| decoding.time(n, |len| len % 16 == 1 && !crosses(len)));
    });
    group.bench_function("decode, mean over all steps", |b| {
        b.iter_custom(|n| decoding.time(n, |_| true));
    });
    group.finish();
}

/// Percentiles of the step in which all cross: what a single late step can cost.
fn crossing_percentiles(_: &mut Criterion) {
    let mut decoding = Decoding::warm();
    let one = |_| decoding.time(1, |len| len > BLOCK_TOKENS && len % BLOCK_TOKENS == 1);
    let mut times: Vec<Duration> = (0..1000).map(one).collect();
    times.sort_unstable();
    let [fastest, median, p95] = [0, 500, 950].map(|at| times[at].as_secs_f64() * 1e6);
    println!(
        "plan 256, all cross into a new block: fastest {fastest:.1} µs, median {median:.1} µs, \
         95 % below {p95:.1} µs"
    );
}

fn lookup(c: &mut Criterion) {
    let mut pool = pool(40);
    let prompt: Vec<u32> = (0..8192).map(|at| token(1, at)).collect();
    let other: Vec<u32> = (0..8192).map(|at| token(2, at)).collect();
    pool.create(SeqId(1), &prompt, 0);
    pool.grow(SeqId(1), prompt.len()).expect("there is room");
    pool.commit(SeqId(1), &prompt);
    let mut group = c.benchmark_group("lookup, prompt of 8192");
    group.bench_function("hit", |b| b.iter(|| pool.lookup(black_box(&prompt), 8191)));
    group.bench_function("miss", |b| b.iter(|| pool.lookup(black_box(&other), 8191)));
    let mut cursor = PrefixCursor::default();
    group.bench_function("hit again", |b| {
        b.iter(|| pool.lookup_from(&mut cursor, black_box(&prompt), 8191, MinBits::ANY));
    });
    let mut cursors = vec![PrefixCursor::default(); WAITING as usize];
    let prompts: Vec<Vec<u32>> = (0..WAITING)
        .map(|seq| (0..300).map(|at| token(seq + 99, at)).collect())
        .collect();
    let look_all = |pool: &BlockManager, cursors: &mut [PrefixCursor]| -> usize {
        let all = cursors.iter_mut().zip(&prompts);
        all.map(|(cursor, prompt)| pool.lookup_from(cursor, prompt, 299, MinBits::ANY).tokens)
            .sum()
    };
    group.bench_function("10,000 waiting, cache unchanged", |b| {
        b.iter(|| look_all(&pool, &mut cursors));
    });
    let mut seq = 10;
    group.bench_function("10,000 waiting, cache changed", |b| {
        b.iter_custom(|n| {
            let mut total = Duration::ZERO;
            for _ in 0..n {
                seq += 1;
                pool.create(SeqId(seq), &[], 0);
                pool.grow(SeqId(seq), BLOCK_TOKENS)
                    .expect("cached blocks are evictable");
                pool.commit(SeqId(seq), &[seq as u32; BLOCK_TOKENS]);
                pool.release(SeqId(seq));
                let start = Instant::now();
                black_box(look_all(&pool, &mut cursors));
                total += start.elapsed();
            }
            total
        });
    });
    group.finish();
}

/// Not a time: the share of reserved memory that holds no token, over real request lengths.
fn waste(_: &mut Criterion) {
    let waste = trace::replay(&trace::azure_conversations(), RUNNING as usize, config(512));
    println!(
        "Azure trace, {RUNNING} running: {:.2} % reserved without a token on average, {:.2} % at \
         worst, of up to {:.1} GiB used",
        100.0 * waste.mean,
        100.0 * waste.worst,
        waste.bytes_used_max as f64 / (1_u64 << 30) as f64,
    );
}

criterion_group!(plan, decode, crossing_percentiles, lookup, waste);
criterion_main!(plan);
