//! The static mode: what a sequence reads depends on nothing but itself.

use std::collections::BTreeMap;

use crate::common::{Harness, request};
use crate::{at_least, levels, progressive, same_prompt, shrinking_pool};
use ebb_block_manager::precision::MinBits;
use ebb_scheduler::{Config, Mode};

fn fixed() -> Config {
    Config {
        mode: Mode::Static,
        ..progressive()
    }
}

/// The levels of the full blocks that each token read.
type Trajectory = BTreeMap<(u64, u32), Vec<u16>>;

/// Runs until nothing is left; what was read twice must have been read alike. Prompts of so many
/// tokens are computed in chunks.
fn trajectory(h: &mut Harness, chunk: u32, prompt: impl Fn(u64) -> u32) -> Trajectory {
    let mut read = Trajectory::new();
    while let Some(plan) = h.plan() {
        for slice in &plan.slices {
            let in_prompt = slice.position < prompt(slice.request.0);
            let chunk = if in_prompt { chunk } else { 128 };
            let full = (slice.position / chunk * chunk / 128) as usize;
            let before = &levels(h, slice.seq)[..full];
            let len = slice.tokens.len() as u32;
            let last = slice.position + len - 1;
            assert_eq!(
                last / chunk,
                slice.position / chunk,
                "a slice stays in its chunk"
            );
            let inside = &levels(h, slice.seq)[full..slice.position as usize / 128];
            assert!(
                inside.iter().all(|p| *p == 0),
                "a chunk reads itself at 16 bit"
            );
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
    let read = trajectory(&mut h, 128, |_| 0);
    let table = &h.scheduler.blocks().config().levels;
    for ((id, _), full) in &read {
        let bound = MinBits([0, 4, 16][*id as usize - 1]);
        let edge = table.floor(bound.max(MinBits(8)));
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
    for chunk in [128, 256, 384] {
        chunks_change_nothing_but(chunk);
    }
}

fn chunks_change_nothing_but(static_chunk: u32) {
    let fixed = || Config {
        static_chunk,
        ..fixed()
    };
    let prompt = |id: u64| 400 + 50 * id as u32;
    let requests = || (1..7).map(|id| request(id, prompt(id), 300));
    let run = |limits: Config, frames| {
        let mut h = Harness::new(limits, shrinking_pool(frames));
        requests().for_each(|request| h.arrive(request));
        let read = trajectory(&mut h, static_chunk, prompt);
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
    let kept = 32 * (static_chunk / 128 - 1);
    let (read, preemptions) = run(overcommitted, 150 + kept);
    assert!(read == alone);
    // A sequence that has to wait for a whole chunk lets others end first.
    assert!(preemptions > 0 || static_chunk > 128);
}

#[test]
fn only_those_who_insist_on_16_bit_use_the_prefix_cache() {
    // Blocks that shrink are not published either: others could keep them from shrinking.
    for (first_bits, bits, found) in [(0, 0, 0), (8, 8, 0), (0, 16, 0), (16, 8, 0), (16, 16, 256)] {
        let mut h = Harness::new(fixed(), shrinking_pool(1000));
        let first = at_least(first_bits, request(1, 300, 5));
        h.arrive(first.clone());
        h.run_dry();
        h.arrive(at_least(bits, same_prompt(2, &first, 300, 5)));
        h.run_dry();
        assert_eq!(h.admissions(), [(1, 0), (2, found)], "{first_bits} {bits}");
    }
}
