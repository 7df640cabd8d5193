//! Which sequence is preempted when memory is short, and how it comes back.

mod common;

use common::{Harness, config, pool, request, slices, tokens};
use ebb_scheduler::{Config, Notice, Request, RequestId};

/// Runs until a request is preempted; returns which.
fn first_victim(h: &mut Harness) -> u64 {
    for _ in 0..1000 {
        h.step();
        if let Some(victim) = h.preemptions().first() {
            return *victim;
        }
    }
    panic!("nobody was preempted");
}

#[test]
fn the_lowest_priority_gives_way_first() {
    let mut h = Harness::new(config(), pool(16));
    for (id, priority) in [(1, 0), (2, 4), (3, 0), (4, 2)] {
        h.arrive(Request {
            priority,
            ..request(id, 60, 40)
        });
    }
    assert_eq!(first_victim(&mut h), 2);
    h.run_dry();
    // Priority 2 may be preempted as well; priority 0 is not.
    assert!(
        h.preemptions().iter().all(|id| [2, 4].contains(id)),
        "{:?}",
        h.preemptions()
    );
}

#[test]
fn of_equals_the_newest_gives_way() {
    let mut h = Harness::new(config(), pool(16));
    for id in 1..=4 {
        h.arrive(request(id, 60, 40));
    }
    assert_eq!(first_victim(&mut h), 4);
    h.run_dry();
}

#[test]
fn the_cheapest_to_compute_again_per_frame_gives_way() {
    // Request 2 has just entered a new sub-block: a frame for one token. It is the cheapest,
    // although request 3 is newer.
    let mut h = Harness::new(config(), pool(16));
    h.arrive(request(1, 60, 60));
    h.arrive(request(2, 65, 60));
    h.arrive(request(3, 112, 60));
    assert_eq!(first_victim(&mut h), 2);
    h.run_dry();
}

#[test]
fn what_others_hold_too_is_neither_freed_nor_computed_again() {
    // Requests 1 to 3 share 256 tokens. When the pool is short, 2 has just got a second frame for
    // the 16 tokens that are its own: 8 tokens a frame, the least of all. Request 4 shares nothing
    // and would have 15; over its whole length 2 would have 136.
    let mut h = Harness::new(config(), pool(37));
    let shared = request(1, 260, 100);
    h.arrive(shared.clone());
    h.step();
    h.arrive(Request {
        id: RequestId(2),
        ..shared.clone()
    });
    h.arrive(Request {
        id: RequestId(3),
        ..shared
    });
    h.arrive(request(4, 230, 100));
    assert_eq!(first_victim(&mut h), 2);
    h.run_dry();
}

#[test]
fn the_most_urgent_never_gives_way() {
    // When request 2 takes the last frame and 3 needs one too, request 1 is the cheapest by far:
    // 25 tokens in two frames. But it came first.
    let mut h = Harness::new(config(), pool(29));
    h.arrive(request(1, 17, 200));
    h.arrive(request(2, 200, 200));
    h.arrive(request(3, 200, 200));
    assert_eq!(first_victim(&mut h), 2);
    h.run_dry();
    assert!(!h.preemptions().contains(&1));
}

#[test]
fn a_preempted_sequence_keeps_its_tokens_and_its_place() {
    let mut h = Harness::new(
        Config {
            max_waiting: 2,
            ..config()
        },
        pool(10),
    );
    h.arrive(request(1, 60, 60));
    let second = request(2, 60, 60);
    h.arrive(second.clone());
    h.step();
    h.arrive(request(3, 10, 1));
    h.arrive(request(4, 10, 1));
    let mut generated = 1;
    while h.preemptions().is_empty() {
        let plan = h.planned();
        let decodes = plan
            .slices
            .iter()
            .any(|s| s.request.0 == 2 && s.position >= 60);
        generated += usize::from(decodes);
        h.done_with(&plan, 9);
    }
    assert_eq!(h.preemptions(), [2]);
    let stats = h.scheduler.stats();
    // `max_waiting` is for arrivals: a preempted request is never rejected.
    assert_eq!((stats.running, stats.waiting_preempted), (1, 1));
    assert!(stats.preempted_tokens > 60);
    // It comes back before those that arrived after it, with all of its tokens.
    let back = loop {
        let plan = h.planned();
        h.done_with(&plan, 9);
        if let Some(slice) = plan.slices.iter().find(|s| s.request.0 == 2) {
            break (slice.position, tokens(&plan, slice).to_vec());
        }
    };
    let mut all = second.prompt.to_vec();
    all.push(7);
    all.resize(60 + generated, 9);
    assert_eq!(back, (0, all));
    h.run_dry();
    let ends: Vec<_> = (1..=4).map(|id| h.end_of(id, 0).is_some()).collect();
    assert_eq!(ends, [true; 4]);
}

#[test]
fn what_a_victim_published_comes_back_as_a_hit() {
    let mut h = Harness::new(config(), pool(24));
    h.arrive(request(1, 60, 120));
    h.arrive(request(2, 140, 120));
    h.arrive(request(3, 30, 1));
    while h.preemptions().is_empty() {
        h.step();
    }
    assert_eq!(h.preemptions(), [2]);
    // Its first block is still cached if no other needed the memory in between.
    h.apply(ebb_scheduler::Event::Cancel(RequestId(1)));
    let plan = h.step();
    assert!(
        slices(&plan)
            .iter()
            .any(|(id, position, ..)| (*id, *position) == (2, 128))
    );
    h.run_dry();
}

#[test]
fn prompt_logprobs_are_delivered_once_also_when_preempted_halfway() {
    let limits = Config {
        prefill_chunk: 2,
        ..config()
    };
    let mut h = Harness::new(limits, pool(14));
    h.arrive(request(1, 60, 100));
    while h.scheduler.stats().tokens_scheduled < 60 {
        h.step();
    }
    h.arrive(Request {
        prompt_logprobs: true,
        ..request(2, 120, 10)
    });
    let mut rows = Vec::new();
    while h.end_of(2, 0).is_none() {
        let plan = h.step();
        for slice in plan.slices.iter().filter(|s| s.request.0 == 2) {
            if matches!(slice.logits, ebb_scheduler::Logits::All { .. }) {
                rows.extend(slice.position..slice.position + slice.tokens.len() as u32);
            }
        }
    }
    assert_eq!(rows, (0..120).collect::<Vec<_>>());
    assert!(
        h.notices
            .iter()
            .any(|n| matches!(n, Notice::Preempted { .. }))
    );
    h.run_dry();
}
