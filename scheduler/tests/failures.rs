//! Steps that fail, and outputs that get lost.

mod common;

use common::{Harness, config, outputs, pool, request, slices};
use ebb_scheduler::FinishReason::{Error, Length};
use ebb_scheduler::{ChoiceOutput, Config, Event, Request, RequestId, StepPlan};

fn failed(h: &mut Harness, plan: &StepPlan) {
    h.apply(Event::StepFailed { step: plan.step });
}

#[test]
fn a_failed_step_is_planned_again() {
    let mut h = Harness::new(
        Config {
            prefill_chunk: 64,
            ..config()
        },
        pool(100),
    );
    h.arrive(request(1, 100, 3));
    h.arrive(request(2, 20, 3));
    h.step();
    let plan = h.planned();
    failed(&mut h, &plan);
    let again = h.planned();
    assert_eq!((again.slices, again.tokens), (plan.slices, plan.tokens));
    assert_ne!(again.step, plan.step);
    let step = again.step;
    let outputs = [(1, 0), (2, 0)].map(|(id, choice)| ChoiceOutput {
        request: RequestId(id),
        choice,
        token: 1,
        finish: false,
    });
    h.apply(Event::StepDone {
        step,
        outputs: outputs.to_vec(),
        failed_shrinks: Vec::new(),
    });
    h.run_dry();
    assert_eq!([1, 2].map(|id| h.end_of(id, 0)), [Some(Length); 2]);
    assert_eq!(h.scheduler.stats().steps_failed, 1);
}

#[test]
fn three_failures_in_a_row_end_a_sequence() {
    let mut h = Harness::new(config(), pool(100));
    h.arrive(request(1, 10, 5));
    for _ in 0..2 {
        let plan = h.planned();
        failed(&mut h, &plan);
    }
    h.step();
    // A step that ran has reset the count.
    for _ in 0..3 {
        assert_eq!(h.end_of(1, 0), None);
        let plan = h.planned();
        failed(&mut h, &plan);
    }
    assert_eq!(h.end_of(1, 0), Some(Error));
    assert!(h.scheduler.is_idle() && h.memory_is_back());

    // All choices, while they share the prompt.
    h.arrive(Request {
        n: 2,
        ..request(2, 10, 5)
    });
    for _ in 0..3 {
        let plan = h.planned();
        failed(&mut h, &plan);
    }
    assert_eq!([0, 1].map(|c| h.end_of(2, c)), [Some(Error); 2]);
}

#[test]
fn a_lost_output_fails_its_sequence_alone() {
    let mut h = Harness::new(config(), pool(100));
    h.arrive(request(1, 10, 5));
    h.arrive(request(2, 10, 5));
    h.step();
    for _ in 0..3 {
        let plan = h.planned();
        let mut sampled = outputs(&plan, 3);
        sampled.retain(|output| output.request.0 == 2);
        h.apply(Event::StepDone {
            step: plan.step,
            outputs: sampled,
            failed_shrinks: Vec::new(),
        });
    }
    assert_eq!([1, 2].map(|id| h.end_of(id, 0)), [Some(Error), None]);
    h.run_dry();
    assert_eq!(h.end_of(2, 0), Some(Length));
}

#[test]
fn outputs_may_come_in_any_order_and_strangers_are_ignored() {
    let mut h = Harness::new(config(), pool(100));
    for id in 1..=3 {
        h.arrive(request(id, 10, 2));
    }
    let plan = h.planned();
    let mut sampled = outputs(&plan, 0);
    for output in &mut sampled {
        output.token = 10 + output.request.0 as u32;
    }
    sampled.push(ChoiceOutput {
        request: RequestId(9),
        choice: 0,
        token: 1,
        finish: true,
    });
    sampled.push(ChoiceOutput {
        request: RequestId(1),
        choice: 4,
        token: 1,
        finish: true,
    });
    sampled.reverse();
    h.apply(Event::StepDone {
        step: plan.step,
        outputs: sampled,
        failed_shrinks: Vec::new(),
    });
    assert_eq!(h.planned().tokens, [11, 12, 13]);
}

#[test]
fn a_failure_voids_what_later_steps_did_with_the_sequence() {
    let mut h = Harness::new(
        Config {
            max_in_flight: 2,
            ..config()
        },
        pool(100),
    );
    h.arrive(request(1, 10, 5));
    let first = h.planned();
    h.arrive(request(2, 10, 5));
    let second = h.planned();
    assert_eq!(slices(&second), [(1, 10, 1, true), (2, 0, 10, true)]);
    failed(&mut h, &first);
    // The retry does not wait for the void slice.
    let third = h.planned();
    assert_eq!(slices(&third), [(2, 10, 1, true), (1, 0, 10, true)]);
    assert_eq!(
        h.scheduler.awaited().collect::<Vec<_>>(),
        [(RequestId(2), 0)]
    );
    h.done_with(&second, 99);
    let fourth = h.planned();
    h.done_with(&third, 5);
    assert_eq!(h.planned().tokens.len(), 2);
    assert_eq!(fourth.slices.len(), 2);
}

#[test]
fn a_sequence_whose_copy_failed_starts_over() {
    let mut h = Harness::new(config(), pool(100));
    h.arrive(Request {
        n: 3,
        ..request(1, 20, 5)
    });
    h.step();
    let plan = h.planned();
    assert_eq!(plan.copies.len(), 4, "two sub-blocks for two of the three");
    failed(&mut h, &plan);
    // The choice that kept the original block goes on. What the others were to copy may be gone by
    // the next step.
    assert_eq!(h.preemptions(), [1, 1]);
    let again = h.planned();
    assert_eq!(
        slices(&again),
        [(1, 20, 1, true), (1, 0, 21, true), (1, 0, 21, true)]
    );
    assert!(again.copies.is_empty());
    h.done(&again);
    h.run_dry();
    assert!((0..3).all(|c| h.end_of(1, c) == Some(Length)));
}
