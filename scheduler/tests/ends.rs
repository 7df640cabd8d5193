//! Cancellations and deadlines, in every state of a request.

mod common;

use common::{Harness, config, pool, request};
use ebb_scheduler::FinishReason::{Cancelled, DeadlineExceeded, Length, Stop};
use ebb_scheduler::{ChoiceOutput, Config, Event, Millis, Request, RequestId};

fn cancel(id: u64) -> Event {
    Event::Cancel(RequestId(id))
}

#[test]
fn cancelling_ends_a_request_at_once_wherever_it_is() {
    let limits = Config {
        max_running: 2,
        prefill_chunk: 16,
        ..config()
    };
    let mut h = Harness::new(limits, pool(100));
    h.arrive(request(1, 10, 50)); // decodes
    h.arrive(request(2, 100, 50)); // computes its prompt
    h.arrive(request(3, 10, 50)); // waits
    h.step();
    h.step();
    for id in 1..=3 {
        h.apply(cancel(id));
        assert_eq!(h.end_of(id, 0), Some(Cancelled));
    }
    assert!(h.scheduler.is_idle() && h.memory_is_back());
    assert!(h.plan().is_none());
}

#[test]
fn memory_under_a_step_in_flight_returns_when_the_step_does() {
    let mut h = Harness::new(config(), pool(10));
    h.arrive(request(1, 100, 50));
    let plan = h.planned();
    h.apply(cancel(1));
    assert_eq!(h.end_of(1, 0), Some(Cancelled));
    assert_eq!(h.scheduler.awaited().count(), 0);
    assert_eq!(h.scheduler.blocks().usage().frames_retiring, 7);
    assert!(!h.scheduler.is_idle());
    h.done(&plan);
    assert!(h.scheduler.is_idle() && h.memory_is_back());
    assert_eq!(h.scheduler.blocks().available(), 10);
}

#[test]
fn cancelling_twice_or_something_unknown_does_nothing() {
    let mut h = Harness::new(config(), pool(10));
    h.arrive(request(1, 10, 2));
    h.apply(cancel(77));
    h.apply(Event::CancelChoice(RequestId(77), 0));
    h.apply(Event::CancelChoice(RequestId(1), 5));
    assert_eq!(h.end_of(1, 0), None);
    h.apply(cancel(1));
    h.apply(cancel(1));
    h.apply(Event::CancelChoice(RequestId(1), 0));
    h.arrive(request(2, 10, 2));
    h.run_dry();
    h.apply(cancel(2));
    assert_eq!(
        (h.end_of(1, 0), h.end_of(2, 0)),
        (Some(Cancelled), Some(Length))
    );
}

#[test]
fn a_deadline_ends_what_runs_and_what_waits() {
    let mut h = Harness::new(
        Config {
            max_running: 1,
            ..config()
        },
        pool(100),
    );
    let due = |id, at| Request {
        deadline: Some(Millis(at)),
        ..request(id, 10, 50)
    };
    h.arrive(due(1, 100));
    h.arrive(due(2, 50));
    h.arrive(due(3, 101));
    h.step();
    h.apply(Event::Tick(Millis(50)));
    assert_eq!(
        (h.end_of(1, 0), h.end_of(2, 0)),
        (None, Some(DeadlineExceeded))
    );
    // Time does not run backwards.
    h.apply(Event::Tick(Millis(10)));
    h.arrive(due(4, 50));
    assert_eq!(h.end_of(4, 0), Some(DeadlineExceeded), "it comes too late");
    h.apply(Event::Tick(Millis(100)));
    assert_eq!(
        (h.end_of(1, 0), h.end_of(3, 0)),
        (Some(DeadlineExceeded), None)
    );
    h.run_dry();
    assert_eq!(h.end_of(3, 0), Some(Length));
}

#[test]
fn a_stop_ends_a_choice_with_its_token() {
    let mut h = Harness::new(config(), pool(10));
    h.arrive(request(1, 10, 50));
    let plan = h.planned();
    let output = ChoiceOutput {
        request: RequestId(1),
        choice: 0,
        token: 5,
        finish: true,
    };
    h.apply(Event::StepDone {
        step: plan.step,
        outputs: vec![output],
        failed_shrinks: Vec::new(),
    });
    assert_eq!(h.end_of(1, 0), Some(Stop));
    assert!(h.scheduler.is_idle() && h.memory_is_back());
}

#[test]
#[should_panic(expected = "request 1 arrived twice")]
fn a_name_is_used_once() {
    let mut h = Harness::new(config(), pool(10));
    h.arrive(request(1, 10, 50));
    h.arrive(request(1, 10, 50));
}

#[test]
#[should_panic(expected = "in the order in which they were planned")]
fn steps_come_back_in_order() {
    let mut h = Harness::new(
        Config {
            max_in_flight: 2,
            ..config()
        },
        pool(10),
    );
    h.arrive(request(1, 10, 50));
    let _first = h.planned();
    let second = h.planned();
    h.done(&second);
}
