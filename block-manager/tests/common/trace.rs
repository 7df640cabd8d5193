//! Replaying real request lengths through the pool.

use std::collections::VecDeque;

use ebb_block_manager::{BlockManager, PoolConfig, SeqId, StepId};

/// Prompt and answer lengths of a chat service's requests, in tokens; see `benches/data/README.md`.
pub(crate) fn azure_conversations() -> Vec<(usize, usize)> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../benches/data/azure_conv_2023.csv"
    );
    let csv = std::fs::read_to_string(path).expect("the trace is part of the repository");
    let number = |field: &str| field.parse().expect("the trace holds numbers");
    let rows = csv.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        (number(fields[1]), number(fields[2]))
    });
    rows.collect()
}

/// What a replay saw. Shares are bytes reserved without a token over bytes that hold one.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Waste {
    pub(crate) steps: u64,
    /// Over the sums of all steps.
    pub(crate) mean: f64,
    /// In the worst step of those with a full batch.
    pub(crate) worst: f64,
    pub(crate) bytes_used_max: u64,
}

struct Running {
    seq: SeqId,
    len: usize,
    end: usize,
}

/// Keeps `places` sequences running until the trace is used up: each computes its prompt in one
/// step, then a token a step. Requests share no content, so the cache is off.
pub(crate) fn replay(requests: &[(usize, usize)], places: usize, mut config: PoolConfig) -> Waste {
    config.prefix_cache = false;
    let mut pool = BlockManager::new(config).expect("the shape is valid");
    let mut waiting: VecDeque<(usize, usize)> = requests.iter().copied().collect();
    let mut running: Vec<Running> = Vec::new();
    let (mut empty, mut used, mut waste) = (0, 0, Waste::default());
    let (mut next_seq, mut prompt, mut deltas) = (0, Vec::new(), Vec::new());
    while !(waiting.is_empty() && running.is_empty()) {
        while running.len() < places {
            let Some((context, generated)) = waiting.pop_front() else {
                break;
            };
            let seq = SeqId(next_seq);
            next_seq += 1;
            pool.create(seq, &[], 0);
            running.push(Running {
                seq,
                len: context,
                end: context + generated,
            });
        }
        for r in &running {
            pool.grow(r.seq, r.len)
                .expect("the pool holds all that run");
        }
        deltas.clear();
        pool.drain_deltas(&mut deltas);
        let usage = pool.usage();
        let (step_empty, step_used) = (usage.bytes_reserved_empty, usage.bytes_used);
        (empty, used) = (empty + u128::from(step_empty), used + u128::from(step_used));
        waste.bytes_used_max = waste.bytes_used_max.max(step_used);
        if running.len() == places {
            waste.worst = waste.worst.max(step_empty as f64 / step_used as f64);
        }
        pool.begin_step(StepId(waste.steps));
        pool.retire_step(StepId(waste.steps));
        waste.steps += 1;
        running.retain_mut(|r| {
            prompt.resize(r.len - pool.committed(r.seq), 7);
            pool.commit(r.seq, &prompt);
            r.len += 1;
            let is_running = r.len <= r.end;
            if !is_running {
                pool.release(r.seq);
            }
            is_running
        });
    }
    assert_eq!(
        pool.usage().frames_free,
        pool.config().frames,
        "the replay lost frames"
    );
    waste.mean = empty as f64 / used as f64;
    waste
}
