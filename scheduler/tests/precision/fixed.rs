//! The static mode: what a sequence reads depends on nothing but itself.

use std::collections::BTreeMap;

use crate::common::{Harness, request};
use crate::{at_least, positions, progressive, same_prompt, shrinking_pool};
use ebb_block_manager::schedule::Bound;
use ebb_scheduler::{Config, Mode};

fn fixed() -> Config {
    Config {
        mode: Mode::Static,
        ..progressive()
    }
}

/// Where the full blocks stood that each token read.
type Trajectory = BTreeMap<(u64, u32), Vec<u16>>;

/// Runs until nothing is left; what was read twice must have been read alike.
fn trajectory(h: &mut Harness) -> Trajectory {
    let mut read = Trajectory::new();
    while let Some(plan) = h.plan() {
        for slice in &plan.slices {
            let full = slice.position as usize / 128;
            let before = &positions(h, slice.seq)[..full];
            let len = slice.tokens.len() as u32;
            let last = slice.position + len - 1;
            assert_eq!(last as usize / 128, full, "a slice stays in one block");
            for position in slice.position..=last {
                let known = read.entry((slice.request.0, position));
                assert_eq!(known.or_insert_with(|| before.to_vec()), before);
            }
        }
        h.done(&plan);
    }
    assert!(h.scheduler.is_idle());
    read
}

#[test]
fn every_full_block_is_at_its_place_before_the_next_token_is_planned() {
    let mut h = Harness::new(fixed(), shrinking_pool(1000));
    h.arrive(request(1, 500, 400));
    h.arrive(at_least(4, request(2, 300, 300)));
    h.arrive(at_least(16, request(3, 300, 300)));
    let read = trajectory(&mut h);
    let table = &h.scheduler.blocks().config().positions;
    for ((id, _), full) in &read {
        let bound = Bound([0, 4, 16][*id as usize - 1]);
        let edge = table.floor(bound.max(Bound(8)));
        let mut expect = vec![table.floor(bound); full.len()];
        if let Some(first) = expect.first_mut() {
            *first = edge;
        }
        if let Some(last) = expect.last_mut() {
            *last = edge;
        }
        assert_eq!(*full, expect);
    }
    assert_eq!(read.len(), 899 + 599 + 599);
}

#[test]
fn chunks_neighbours_and_preemptions_change_nothing() {
    let requests = || (1..7).map(|id| request(id, 400 + 50 * id as u32, 300));
    let run = |limits: Config, frames| {
        let mut h = Harness::new(limits, shrinking_pool(frames));
        requests().for_each(|request| h.arrive(request));
        let read = trajectory(&mut h);
        assert!(h.memory_is_back());
        (read, h.scheduler.stats().preemptions)
    };
    let (alone, _) = run(
        Config {
            max_running: 1,
            ..fixed()
        },
        2000,
    );
    let chunked = Config {
        prefill_chunk: 37,
        ..fixed()
    };
    assert!(run(chunked, 2000).0 == alone);
    assert!(run(fixed(), 200).0 == alone);
    let overcommitted = Config {
        overcommit_percent: 400,
        ..fixed()
    };
    let (read, preemptions) = run(overcommitted, 150);
    assert!(read == alone);
    assert!(preemptions > 0);
}

#[test]
fn only_those_who_insist_on_16_bit_use_the_prefix_cache() {
    for (bits, found) in [(0, 0), (8, 0), (16, 256)] {
        let mut h = Harness::new(fixed(), shrinking_pool(1000));
        let first = at_least(bits, request(1, 300, 5));
        h.arrive(first.clone());
        h.run_dry();
        h.arrive(at_least(bits, same_prompt(2, &first, 300, 5)));
        h.run_dry();
        assert_eq!(h.admissions(), [(1, 0), (2, found)], "{bits}");
    }
}
