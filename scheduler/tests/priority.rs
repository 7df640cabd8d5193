//! Preemption for priority: who gives its slot to whom, and how often.

mod common;

use common::{Harness, config, pool, request};
use ebb_scheduler::{Config, Request};

/// A batch of two.
fn limits(priority_margin: Option<u32>) -> Config {
    Config {
        max_running: 2,
        aging_steps: 8,
        priority_margin,
        ..config()
    }
}

fn of_priority(id: u64, priority: i32) -> Request {
    Request {
        priority,
        ..request(id, 20, 40)
    }
}

/// Two requests of priorities 0 and 2 run for long; then one comes that is urgent.
fn full_batch(margin: Option<u32>, urgent: i32) -> Harness {
    let mut h = Harness::new(limits(margin), pool(400));
    h.arrive(of_priority(1, 0));
    h.arrive(of_priority(2, 2));
    for _ in 0..20 {
        h.step();
    }
    h.arrive(of_priority(3, urgent));
    h.step();
    h
}

#[test]
fn the_least_urgent_yields_by_the_margin() {
    for (margin, urgent, yields) in [
        (None, -100, false),
        (Some(2), 0, true),
        (Some(3), 0, false),
        (Some(1), 2, false),
        // Its own level is no margin, whatever the flag says.
        (Some(0), 2, false),
        (Some(0), 1, true),
    ] {
        let mut h = full_batch(margin, urgent);
        let (admitted, preempted): (Vec<u64>, Vec<u64>) = match yields {
            true => (vec![1, 2, 3], vec![2]),
            false => (vec![1, 2], vec![]),
        };
        let case = format!("{margin:?}, {urgent}");
        let ids: Vec<u64> = h.admissions().into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, admitted, "{case}");
        assert_eq!(h.preemptions(), preempted, "{case}");
        assert_eq!(h.scheduler.stats().yields, u64::from(yields), "{case}");
        h.run_dry();
        assert!((1..=3).all(|id| h.end_of(id, 0).is_some()), "{case}");
        assert!(h.memory_is_back());
    }
}

#[test]
fn a_request_yields_once_however_many_urgent_ones_come() {
    let mut h = full_batch(Some(1), -5);
    assert_eq!(h.preemptions(), [2]);
    let mut came = 3;
    while h.end_of(2, 0).is_none() {
        came += 1;
        assert!(came < 400, "it never ends");
        h.arrive(of_priority(came, -5));
        h.step();
        h.step();
    }
    // The request of priority 0 yielded too, and also once.
    assert_eq!(h.preemptions(), [2, 1]);
    h.run_dry();
    assert!((1..=came).all(|id| h.end_of(id, 0).is_some()));
}

#[test]
fn nobody_yields_when_it_would_not_be_enough() {
    let mut h = Harness::new(limits(Some(1)), pool(400));
    h.arrive(of_priority(1, 0));
    h.arrive(of_priority(2, -9));
    h.step();
    // It needs both slots, and one request is more urgent than it is.
    h.arrive(Request {
        n: 2,
        ..of_priority(3, -5)
    });
    h.step();
    assert!(h.preemptions().is_empty());
    h.run_dry();
    assert!((0..2).all(|choice| h.end_of(3, choice).is_some()));
}
