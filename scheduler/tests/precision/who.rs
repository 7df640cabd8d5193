//! Which blocks shrink, and which do not.

use crate::common::{Harness, config, request};
use crate::{
    AT_2, AT_8, AT_16, bits, bits_at_end, can_shrink, levels, progressive, seq_of, shrinking_pool,
    with_priority,
};
use ebb_scheduler::{Config, Mode};

/// The most that ran at once, and the tokens computed.
fn run_all(mode: Mode) -> (usize, u64, Harness) {
    let limits = Config {
        mode,
        low_water_permille: 100,
        high_water_permille: 200,
        ..progressive()
    };
    let mut h = Harness::new(limits, shrinking_pool(3000));
    for id in 0..60 {
        h.arrive(request(id, 1900, 100));
    }
    let mut most = 0;
    while let Some(plan) = h.plan() {
        most = most.max(h.scheduler.stats().running);
        h.done(&plan);
    }
    assert!((0..60).all(|id| h.end_of(id, 0).is_some()));
    let stats = h.scheduler.stats();
    (most, stats.tokens_scheduled, h)
}

#[test]
fn three_times_as_many_are_resident_and_no_token_is_computed_twice() {
    let (whole, ..) = run_all(Mode::PreemptOnly);
    let (shrunk, tokens, h) = run_all(Mode::Progressive);
    assert!(shrunk >= 3 * whole, "{shrunk} against {whole}");
    assert_eq!(h.preemptions(), [0; 0]);
    assert_eq!(tokens, 60 * (1900 + 100 - 1));
    assert!(h.scheduler.stats().preemptions_avoided_milli > 0);
    assert!(h.memory_is_back());
}

#[test]
fn the_lower_priority_shrinks_first() {
    let mut h = Harness::new(progressive(), shrinking_pool(600));
    h.arrive(with_priority(0, request(1, 1000, 400)));
    h.arrive(with_priority(5, request(2, 1000, 400)));
    let first = h.step();
    let (urgent, other) = (seq_of(&first, 1).unwrap(), seq_of(&first, 2).unwrap());
    let (mut of_urgent, mut of_other) = (0, 0);
    while h.end_of(1, 0).is_none() && h.end_of(2, 0).is_none() {
        let before = can_shrink(&h, other);
        let plan = h.planned();
        let blocks = h.scheduler.blocks();
        let is_of = |seq| {
            let ids = blocks.table(seq).ids();
            plan.shrinks
                .iter()
                .filter(|job| ids.contains(&job.block))
                .count()
        };
        let (a, b) = (is_of(urgent), is_of(other));
        assert!(a == 0 || b > 0 || !before, "{:?}", plan.shrinks);
        of_urgent += a;
        of_other += b;
        h.done(&plan);
    }
    assert!(of_other > 0);
    assert!(of_urgent <= of_other, "{of_urgent} and {of_other}");
}

#[test]
fn an_urgent_sequence_stays_at_16_bit_while_others_can_shrink() {
    let mut h = Harness::new(progressive(), shrinking_pool(700));
    h.arrive(with_priority(0, request(1, 300, 300)));
    for id in 2..6 {
        h.arrive(with_priority(3, request(id, 600, 300)));
    }
    while h.end_of(1, 0).is_none() {
        let plan = h.planned();
        if let Some(seq) = seq_of(&plan, 1) {
            assert!(levels(&h, seq).iter().all(|p| *p == 0));
        }
        h.done(&plan);
    }
    assert!(h.scheduler.stats().shrinks_live > 0);
    let read = bits_at_end(&h, 1);
    assert_eq!((read.lowest, read.mean_centibits), (16, 1600));
    h.run_dry();
}

#[test]
fn nothing_shrinks_where_there_is_room() {
    let limits = Config {
        low_water_permille: 20,
        high_water_permille: 50,
        ..progressive()
    };
    let mut h = Harness::new(limits, shrinking_pool(2000));
    for id in 1..5 {
        h.arrive(request(id, 600, 300));
    }
    h.run_dry();
    assert_eq!(h.scheduler.stats().shrinks, 0);
}

#[test]
fn the_first_and_the_last_sealed_block_keep_the_protected_width() {
    // It ends with two blocks at 8 bit, five at 2, and one being filled.
    let frames = 2 * AT_8 + 5 * AT_2 + AT_16;
    let mut h = Harness::new(progressive(), shrinking_pool(frames));
    h.arrive(request(1, 100, 7 * 128 + 100));
    let mut lowest_inside = 16;
    while h.end_of(1, 0).is_none() {
        let plan = h.planned();
        if let Some(seq) = seq_of(&plan, 1) {
            let all = bits(&h, seq);
            let sealed = &all[..h.scheduler.blocks().committed(seq) / 128];
            if let [first, inside @ .., last] = sealed {
                assert!(*first >= 8 && *last >= 8, "{sealed:?}");
                lowest_inside = lowest_inside.min(inside.iter().copied().min().unwrap_or(16));
            }
        }
        h.done(&plan);
    }
    assert_eq!(lowest_inside, 2);
    assert_eq!(bits_at_end(&h, 1).lowest, 2);
    assert_eq!(h.preemptions(), [0; 0]);
}

#[test]
fn a_plan_may_have_shrinks_only() {
    let mut h = Harness::new(progressive(), shrinking_pool(3 * AT_16));
    h.arrive(request(1, 3 * 128, 100));
    let filled = h.step();
    assert_eq!(filled.tokens.len(), 3 * 128);
    // The first token has no memory until a block has shrunk.
    let plan = h.planned();
    assert!(plan.slices.is_empty() && !plan.shrinks.is_empty());
    assert!(h.plan().is_none());
    h.done(&plan);
    let next = h.step();
    assert_eq!(next.slices.len(), 1);
    h.run_dry();
    assert_eq!(h.scheduler.stats().tokens_scheduled, 3 * 128 + 99);
}

#[test]
fn choices_of_one_request_keep_their_promises() {
    let mut h = Harness::new(progressive(), shrinking_pool(330));
    for id in 1..5 {
        h.arrive(ebb_scheduler::Request {
            n: 3,
            ..request(id, 500, 300)
        });
    }
    h.run_dry();
    assert!((1..5).all(|id| (0..3).all(|choice| h.end_of(id, choice).is_some())));
    assert_eq!(h.preemptions(), [0; 0]);
    assert!(h.scheduler.stats().shrinks_live > 0);
    assert!(h.memory_is_back());
}

#[test]
fn where_nothing_shrinks_the_schedule_is_not_used() {
    let mut h = Harness::new(config(), shrinking_pool(300));
    for id in 1..4 {
        h.arrive(request(id, 500, 100));
    }
    h.run_dry();
    let stats = h.scheduler.stats();
    assert_eq!((stats.shrinks, stats.frames_promised), (0, 0));
}

#[test]
fn a_prompt_that_waits_for_room_does_not_take_what_shrinking_needs() {
    let limits = Config {
        low_water_permille: 100,
        high_water_permille: 100,
        ..progressive()
    };
    let mut h = Harness::new(limits, shrinking_pool(1000));
    for id in 1..9 {
        h.arrive(request(id, 500, 400));
    }
    for _ in 0..20 {
        h.step();
    }
    h.arrive(request(9, 1000, 1));
    let mut steps = 0;
    while h.end_of(9, 0).is_none() {
        h.step();
        steps += 1;
    }
    // With room for one block at a time it takes 30.
    assert!(steps <= 12, "{steps}");
}
