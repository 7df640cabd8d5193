//! Admission where blocks shrink.

use crate::common::{Harness, request};
use crate::{AT_2, AT_8, AT_16, progressive, shrinking_pool};
use ebb_scheduler::{Admission, Config, Notice};

fn queue() -> Config {
    Config {
        admission: Admission::Queue,
        ..progressive()
    }
}

#[test]
fn queueing_waits_for_room_at_16_bit() {
    for (limits, running, shrinks) in [(queue(), 2, false), (progressive(), 3, true)] {
        // 500 tokens are 128 frames at 16 bit.
        let mut h = Harness::new(limits, shrinking_pool(300));
        for id in 1..4 {
            h.arrive(request(id, 500, 12));
        }
        for _ in 0..8 {
            h.step();
        }
        let stats = h.scheduler.stats();
        assert_eq!(stats.running, running);
        assert_eq!(stats.shrinks > 0, shrinks);
        h.run_dry();
        assert_eq!(h.scheduler.stats().shrinks > 0, shrinks);
        assert!((1..4).all(|id| h.end_of(id, 0).is_some()));
    }
}

#[test]
fn queueing_evicts_cold_blocks_and_degrading_shrinks_them() {
    for (limits, shrinks) in [(queue(), false), (progressive(), true)] {
        let limits = Config {
            prefill_chunk: 128,
            ..limits
        };
        let mut h = Harness::new(limits, shrinking_pool(300));
        h.arrive(request(1, 600, 1));
        h.run_dry();
        h.arrive(request(2, 1000, 1));
        h.run_dry();
        let stats = h.scheduler.stats();
        assert_eq!(stats.shrinks > stats.shrinks_live, shrinks);
    }
}

#[test]
fn queueing_shrinks_what_runs_rather_than_preempting_it() {
    let mut h = Harness::new(queue(), shrinking_pool(300));
    for id in 1..3 {
        h.arrive(request(id, 500, 300));
    }
    h.run_dry();
    let stats = h.scheduler.stats();
    assert_eq!(stats.preemptions, 0);
    assert!(stats.shrinks_live > 0);
    assert_eq!(stats.tokens_scheduled, 2 * (500 + 299));
}

#[test]
fn what_fits_at_the_floor_is_taken_and_nothing_beyond() {
    // Nine full blocks and one token: the first and the last at 8 bit, and just before, eight and
    // one at 16 bit.
    let floor = 2 * AT_8 + 6 * AT_2 + AT_16;
    let mut h = Harness::new(progressive(), shrinking_pool(floor));
    h.arrive(request(1, 1000, 9 * 128 + 2 - 1000));
    h.run_dry();
    assert!(h.end_of(1, 0).is_some());
    assert_eq!(h.preemptions(), [0; 0]);

    let mut h = Harness::new(progressive(), shrinking_pool(floor - 1));
    h.arrive(request(1, 1000, 9 * 128 + 2 - 1000));
    let Some(Notice::Rejected { reason, .. }) = h.notices.last() else {
        panic!("{:?}", h.notices);
    };
    assert_eq!(
        reason.to_string(),
        "1000 prompt tokens and up to 154 generated ones need at least 88 frames of KV memory \
         (88000 bytes), but there are 87 (87000 bytes): shorten the prompt, lower max_tokens or \
         give the server more KV memory"
    );
}

#[test]
fn a_request_that_insists_on_16_bit_must_fit_at_16_bit() {
    let mut h = Harness::new(progressive(), shrinking_pool(10 * AT_16));
    for (id, tokens) in [(1, 10 * 128), (2, 10 * 128 + 1)] {
        h.arrive(crate::at_least(16, request(id, tokens, 1)));
    }
    assert!(matches!(
        h.notices[..],
        [Notice::Rejected { request, .. }] if request.0 == 2
    ));
    h.run_dry();
    assert!(h.end_of(1, 0).is_some());
}

#[test]
fn promises_never_exceed_the_pool() {
    let mut h = Harness::new(progressive(), shrinking_pool(400));
    for id in 1..30 {
        h.arrive(request(id, 900, 100));
    }
    let mut most = 0;
    while let Some(plan) = h.plan() {
        let promised = h.scheduler.stats().frames_promised;
        assert!(promised <= 400);
        most = most.max(promised);
        h.done(&plan);
    }
    // One more would not have fitted.
    assert!(most > 400 - 84, "{most}");
    assert_eq!(h.preemptions(), [0; 0]);
}
