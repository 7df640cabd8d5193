//! Shrinks that fail, and ends while blocks shrink.

use ebb_block_manager::BlockId;
use ebb_scheduler::{Config, Event, FinishReason, Millis, Request, RequestId, StepPlan};

use crate::common::{Harness, outputs, request};
use crate::{AT_16, progressive, shrinking_pool};

/// Two requests that only fit once they have shrunk.
fn pressed() -> Harness {
    let mut h = Harness::new(progressive(), shrinking_pool(240));
    h.arrive(request(1, 600, 300));
    h.arrive(request(2, 600, 300));
    h
}

/// Runs until a plan shrinks a block; the plan is in flight.
fn until_shrinks(h: &mut Harness) -> StepPlan {
    loop {
        let plan = h.planned();
        if !plan.shrinks.is_empty() {
            return plan;
        }
        h.done(&plan);
    }
}

fn done_without(h: &mut Harness, plan: &StepPlan, failed_shrinks: Vec<BlockId>) {
    let outputs = outputs(plan, 7);
    h.apply(Event::StepDone {
        step: plan.step,
        outputs,
        failed_shrinks,
    });
}

/// A block's level, if a sequence of the plan holds it.
fn level(h: &Harness, block: BlockId) -> Option<u16> {
    let blocks = h.scheduler.blocks();
    blocks
        .level_use()
        .find(|_| blocks.usage().blocks_live > 0)?;
    (0..100)
        .map(ebb_block_manager::SeqId)
        .filter(|seq| blocks.contains(*seq))
        .find_map(|seq| {
            let table = blocks.table(seq);
            let index = table.ids().iter().position(|id| *id == block)?;
            table.get(index).map(|(level, _)| level)
        })
}

#[test]
fn a_block_that_cannot_be_transcoded_stays_and_is_not_tried_again() {
    let mut h = pressed();
    let plan = until_shrinks(&mut h);
    let stuck = plan.shrinks[0].block;
    done_without(&mut h, &plan, vec![stuck]);
    assert_eq!(level(&h, stuck), Some(plan.shrinks[0].from));
    for job in &plan.shrinks[1..] {
        assert_eq!(level(&h, job.block), Some(job.to));
    }
    while h.end_of(1, 0).is_none() && h.end_of(2, 0).is_none() {
        let plan = h.step();
        assert!(plan.shrinks.iter().all(|job| job.block != stuck));
    }
    h.run_dry();
    assert_eq!(h.scheduler.stats().shrinks_failed, 1);
    assert!(h.memory_is_back());
}

#[test]
fn after_a_failed_step_the_block_stays_and_is_tried_again() {
    let mut h = pressed();
    let plan = until_shrinks(&mut h);
    h.apply(Event::StepFailed { step: plan.step });
    let first = &plan.shrinks[0];
    assert_eq!(level(&h, first.block), Some(first.from));
    assert_eq!(h.scheduler.blocks().usage().frames_shrinking, 0);
    let again = until_shrinks(&mut h);
    assert!(again.shrinks.iter().any(|job| job.block == first.block));
    h.done(&again);
    h.run_dry();
    assert_eq!(h.end_of(1, 0), Some(FinishReason::Length));
    assert_eq!(h.end_of(2, 0), Some(FinishReason::Length));
    assert_eq!(h.scheduler.stats().shrinks_failed, 0);
    assert!(h.memory_is_back());
}

/// Runs with every shrink failing.
fn run_stuck(h: &mut Harness) {
    for _ in 0..10_000 {
        let Some(plan) = h.plan() else {
            assert!(h.scheduler.is_idle());
            return;
        };
        let all = plan.shrinks.iter().map(|job| job.block).collect();
        done_without(h, &plan, all);
    }
    panic!("still busy: {:?}", h.scheduler.stats());
}

#[test]
fn where_no_block_can_be_transcoded_sequences_give_their_memory_up_instead() {
    let mut h = pressed();
    run_stuck(&mut h);
    assert!(!h.preemptions().is_empty());
    assert_eq!(h.end_of(1, 0), Some(FinishReason::Length));
    assert_eq!(h.end_of(2, 0), Some(FinishReason::Length));
    assert!(h.memory_is_back());
}

#[test]
fn one_that_fits_only_if_it_shrinks_and_cannot_fails_alone() {
    let mut h = Harness::new(progressive(), shrinking_pool(3 * AT_16));
    h.arrive(request(1, 600, 10));
    h.arrive(request(2, 200, 10));
    run_stuck(&mut h);
    assert_eq!(h.end_of(1, 0), Some(FinishReason::Error));
    assert_eq!(h.end_of(2, 0), Some(FinishReason::Length));
    assert!(h.memory_is_back());
}

#[test]
fn ends_while_blocks_shrink_give_everything_back() {
    type End = fn(&mut Harness);
    let ends: [End; 2] = [
        |h| h.apply(Event::Cancel(RequestId(1))),
        |h| h.apply(Event::Tick(Millis(50))),
    ];
    for end in ends {
        for depth in [1, 2] {
            let limits = Config {
                max_in_flight: depth,
                ..progressive()
            };
            let mut h = Harness::new(limits, shrinking_pool(240));
            h.arrive(Request {
                deadline: Some(Millis(50)),
                ..request(1, 600, 300)
            });
            h.arrive(request(2, 600, 300));
            let plan = until_shrinks(&mut h);
            let second = h.plan();
            assert!(h.scheduler.blocks().usage().frames_shrinking > 0);
            end(&mut h);
            // A shrink may fail after its block is gone.
            let all = plan.shrinks.iter().map(|job| job.block).collect();
            done_without(&mut h, &plan, all);
            if let Some(second) = second {
                h.done(&second);
            }
            h.run_dry();
            assert_eq!(h.end_of(2, 0), Some(FinishReason::Length));
            assert!(h.memory_is_back());
            assert_eq!(h.scheduler.blocks().usage().frames_shrinking, 0);
        }
    }
}
