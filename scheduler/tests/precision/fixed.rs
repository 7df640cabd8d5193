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
        for recent in [0, 200, 600] {
            chunks_change_nothing_but(chunk, recent);
        }
    }
}

fn chunks_change_nothing_but(static_chunk: u32, recent_permille: u32) {
    let fixed = || Config {
        static_chunk,
        recent_permille,
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
    // Room for one request at its longest.
    let recent = 32 * fixed().recent_blocks(usize::MAX);
    assert!(run(fixed(), 200 + recent).0 == alone);
    let overcommitted = Config {
        overcommit_percent: 400,
        ..fixed()
    };
    let kept = 32 * (static_chunk / 128 - 1);
    let (read, preemptions) = run(overcommitted, 150 + kept + recent);
    assert!(read == alone);
    // A sequence that has to wait for a whole chunk lets others end first.
    assert!(preemptions > 0 || static_chunk > 128 || recent_permille > 0);
}

// KVmix's rule: what a token reads at 16 bit are the blocks that lie wholly within the recent
// context, as a list of tokens has it.
#[test]
fn the_recent_context_stays_at_16_bit() {
    for (static_chunk, recent_permille) in [(128, 600), (512, 400), (1024, 200), (512, 500)] {
        let config = Config {
            static_chunk,
            recent_permille,
            ..fixed()
        };
        let prompt = 1300;
        let mut h = Harness::new(config, shrinking_pool(2000));
        h.arrive(request(1, prompt, 600));
        let read = trajectory(&mut h, static_chunk, |_| prompt);
        assert!(h.memory_is_back());
        let table = &h.scheduler.blocks().config().levels;
        let (floor, edge) = (table.floor(MinBits::ANY), table.floor(MinBits(8)));
        let mut most = 0;
        for ((_, position), levels) in &read {
            // Where the step that computes the token begins, and what is recent then.
            let computed = if *position < prompt {
                position / static_chunk * static_chunk
            } else {
                (position / 128 * 128).max(prompt)
            };
            let mut full = Vec::new();
            for token in 0..computed {
                full.push(token);
                let next = token + 1;
                let is_end = match token < prompt {
                    true => next % static_chunk == 0 || next == prompt,
                    false => next % 128 == 0,
                };
                if is_end {
                    let keep = full.len() * recent_permille as usize / 1000;
                    full.drain(..full.len() - keep);
                }
            }
            let is_recent = |block: usize| {
                let tokens = block as u32 * 128..block as u32 * 128 + 128;
                full.first().is_some_and(|first| tokens.start >= *first)
            };
            let expect = |block: usize| match block {
                _ if is_recent(block) => 0,
                0 => edge,
                _ if block + 1 == levels.len() => edge,
                _ => floor,
            };
            let expect: Vec<u16> = (0..levels.len()).map(expect).collect();
            assert_eq!(*levels, expect, "token {position}, chunk {static_chunk}");
            most = most.max(expect.iter().filter(|level| **level == 0).count());
        }
        assert!(most > 0, "nothing was recent");
    }
}

// Where no block has to shrink first, the token behind a prompt does not wait for the prompt's
// step.
#[test]
fn the_first_token_is_planned_ahead() {
    for recent_permille in [0, 200] {
        let config = Config {
            max_in_flight: 2,
            recent_permille,
            ..fixed()
        };
        let mut h = Harness::new(config, shrinking_pool(1000));
        h.arrive(request(1, 100, 20));
        let prompt = h.plan().expect("the prompt");
        let ahead = h.plan().expect("the token behind it");
        assert_eq!((ahead.slices[0].position, ahead.slices.len()), (100, 1));
        h.done(&prompt);
        h.done(&ahead);
        h.run_dry();
        assert!(h.memory_is_back());
    }
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
