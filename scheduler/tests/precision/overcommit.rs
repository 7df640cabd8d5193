//! Promises beyond the pool.

use crate::common::{Harness, request};
use crate::{can_shrink, progressive, seq_of, shrinking_pool};
use ebb_scheduler::Config;

#[test]
fn preemption_comes_only_when_nothing_is_left_to_shrink() {
    let limits = Config {
        overcommit_percent: 200,
        ..progressive()
    };
    let mut h = Harness::new(limits, shrinking_pool(400));
    for id in 1..12 {
        h.arrive(request(id, 600, 600));
    }
    let mut seqs = Vec::new();
    let mut before = 0;
    loop {
        seqs.retain(|seq| h.scheduler.blocks().contains(*seq));
        let shrinkable = seqs.iter().any(|seq| can_shrink(&h, *seq));
        let Some(plan) = h.plan() else { break };
        if h.preemptions().len() > before {
            assert!(!shrinkable);
            before = h.preemptions().len();
        }
        seqs.extend((1..12).filter_map(|id| seq_of(&plan, id)));
        h.done(&plan);
    }
    assert!(before > 0);
    assert!((1..12).all(|id| h.end_of(id, 0).is_some()));
    assert!(h.memory_is_back());
}

#[test]
fn one_that_lost_a_bet_comes_back_when_nothing_is_betted_on() {
    let limits = Config {
        overcommit_percent: 200,
        ..progressive()
    };
    let mut h = Harness::new(limits, shrinking_pool(400));
    for id in 1..9 {
        h.arrive(request(id, 600, 600));
    }
    h.run_dry();
    // Each is preempted at most once.
    let mut lost = h.preemptions();
    assert!(!lost.is_empty());
    let all = lost.len();
    lost.sort_unstable();
    lost.dedup();
    assert_eq!(lost.len(), all);
}
