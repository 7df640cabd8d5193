//! The order of service: priorities that age, no overtaking of a request that does not fit.

mod common;

use common::{Harness, config, pool, request};
use ebb_scheduler::{Config, Request};
use proptest::prelude::*;

fn with_priority(id: u64, priority: i32) -> Request {
    Request {
        priority,
        ..request(id, 10, 1)
    }
}

fn order(h: &Harness) -> Vec<u64> {
    h.admissions().iter().map(|(id, _)| *id).collect()
}

#[test]
fn lower_priority_numbers_go_first_and_equals_in_order_of_arrival() {
    let mut h = Harness::new(
        Config {
            max_running: 1,
            ..config()
        },
        pool(100),
    );
    for (id, priority) in [(1, 5), (2, 0), (3, -3), (4, 0), (5, 5)] {
        h.arrive(with_priority(id, priority));
    }
    h.run_dry();
    assert_eq!(order(&h), [3, 2, 4, 1, 5]);
}

#[test]
fn without_aging_arrival_is_all_that_counts() {
    let mut h = Harness::new(
        Config {
            max_running: 1,
            aging_steps: 0,
            ..config()
        },
        pool(100),
    );
    for (id, priority) in [(1, 5), (2, 0), (3, -3)] {
        h.arrive(with_priority(id, priority));
    }
    h.run_dry();
    assert_eq!(order(&h), [1, 2, 3]);
}

#[test]
fn a_stream_of_urgent_requests_starves_nobody() {
    // One request runs at a time and takes one step; each step another urgent one arrives.
    let mut h = Harness::new(
        Config {
            max_running: 1,
            aging_steps: 10,
            ..config()
        },
        pool(100),
    );
    h.arrive(with_priority(1000, 3));
    for id in 0..100 {
        h.arrive(with_priority(id, 0));
        h.step();
    }
    // Overtaken by those that arrive at steps 0 to 29, which is 3 levels * 10 steps.
    let served = order(&h).iter().position(|id| *id == 1000);
    assert_eq!(served, Some(30));
}

#[test]
fn a_large_request_is_not_overtaken_by_small_ones() {
    let mut h = Harness::new(config(), pool(20));
    h.arrive(request(1, 200, 20));
    h.step();
    h.arrive(request(2, 250, 2));
    for id in 3..30 {
        h.arrive(request(id, 10, 2));
    }
    h.run_dry();
    assert_eq!(order(&h)[..2], [1, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The bound that `Config::aging_steps` states, on whole runs.
    #[test]
    fn overtaking_stays_within_the_stated_bound(
        arrivals in prop::collection::vec((0u64..4, -3i32..4, 1u32..60, 1u32..6), 1..60),
        aging_steps in 0u32..12,
        max_running in 1usize..4,
    ) {
        let limits = Config { max_running, aging_steps, ..config() };
        let mut h = Harness::new(limits, pool(10));
        let mut arrived = Vec::new();
        for (id, (pause, priority, prompt, max_tokens)) in arrivals.into_iter().enumerate() {
            for _ in 0..pause {
                if let Some(plan) = h.plan() {
                    h.done(&plan);
                }
            }
            arrived.push((h.scheduler.stats().steps as i64, priority));
            h.arrive(Request { priority, ..request(id as u64, prompt, max_tokens) });
        }
        h.run_dry();
        let order = order(&h);
        prop_assert_eq!(order.len(), arrived.len());
        for (place, winner) in order.iter().enumerate() {
            for loser in &order[place + 1..] {
                if loser < winner {
                    let (later, urgent) = arrived[*winner as usize];
                    let (earlier, patient) = arrived[*loser as usize];
                    let window = i64::from(patient - urgent) * i64::from(aging_steps);
                    prop_assert!(later - earlier < window, "{} overtakes {}", winner, loser);
                }
            }
        }
    }
}
