//! Several choices from one prompt.

mod common;

use common::{Harness, config, outputs, pool, request, slices};
use ebb_scheduler::FinishReason::{Cancelled, Length, Stop};
use ebb_scheduler::{Config, Event, Logits, Request, RequestId};

fn choices(id: u64, n: u32, prompt: u32, max_tokens: u32) -> Request {
    Request {
        n,
        ..request(id, prompt, max_tokens)
    }
}

#[test]
fn the_prompt_is_computed_once_and_sampled_n_times() {
    let mut h = Harness::new(config(), pool(100));
    h.arrive(choices(1, 3, 200, 20));
    let prompt = h.planned();
    assert_eq!(slices(&prompt), [(1, 0, 200, true)]);
    assert_eq!(prompt.slices[0].logits, Logits::Last { choices: 3 });
    let request = RequestId(1);
    assert_eq!(
        h.scheduler.awaited().collect::<Vec<_>>(),
        [(request, 0), (request, 1), (request, 2)]
    );
    let mut sampled = outputs(&prompt, 0);
    for output in &mut sampled {
        output.token = 50 + output.choice;
    }
    h.apply(Event::StepDone {
        step: prompt.step,
        outputs: sampled,
        failed_shrinks: Vec::new(),
    });
    let usage = h.scheduler.blocks().usage();
    assert_eq!(
        (usage.frames_live, usage.sequences),
        (13, 3),
        "the prompt's pages are shared"
    );

    let decode = h.planned();
    let found: Vec<_> = decode
        .slices
        .iter()
        .map(|s| (s.choice, s.position, s.logits))
        .collect();
    let one = Logits::Last { choices: 1 };
    assert_eq!(found, [(0, 200, one), (1, 200, one), (2, 200, one)]);
    assert_eq!(decode.tokens, [50, 51, 52]);
    // 72 tokens of the open block: 5 frames, copied for two of the three.
    assert_eq!(decode.copies.len(), 10);
    h.done(&decode);
    h.run_dry();
    assert!((0..3).all(|c| h.end_of(1, c) == Some(Length)));
    assert_eq!(h.scheduler.stats().tokens_scheduled, 200 + 3 * 19);
}

#[test]
fn choices_that_end_with_their_first_token_take_no_memory() {
    let mut h = Harness::new(config(), pool(100));
    h.arrive(choices(1, 3, 20, 5));
    let prompt = h.planned();
    let mut sampled = outputs(&prompt, 5);
    sampled[0].finish = true;
    sampled[2].finish = true;
    h.apply(Event::StepDone {
        step: prompt.step,
        outputs: sampled,
        failed_shrinks: Vec::new(),
    });
    assert_eq!(
        [0, 1, 2].map(|c| h.end_of(1, c)),
        [Some(Stop), None, Some(Stop)]
    );
    let decode = h.step();
    assert_eq!((decode.slices[0].choice, decode.copies.len()), (1, 0));
    h.run_dry();

    let mut h = Harness::new(config(), pool(100));
    h.arrive(choices(1, 4, 20, 1));
    h.step();
    assert!((0..4).all(|c| h.end_of(1, c) == Some(Length)));
    assert!(h.scheduler.is_idle() && h.memory_is_back());
}

#[test]
fn choices_can_be_cancelled_before_and_after_they_part() {
    let mut h = Harness::new(
        Config {
            prefill_chunk: 50,
            ..config()
        },
        pool(100),
    );
    h.arrive(choices(1, 3, 100, 20));
    h.step();
    h.apply(Event::CancelChoice(RequestId(1), 0));
    assert_eq!(h.end_of(1, 0), Some(Cancelled));
    let prompt = h.planned();
    // All n choices are sampled; the sample of the one that has ended is ignored.
    assert_eq!(
        (prompt.slices[0].choice, prompt.slices[0].logits),
        (1, Logits::Last { choices: 3 })
    );
    assert_eq!(
        h.scheduler.awaited().map(|(_, c)| c).collect::<Vec<_>>(),
        [1, 2]
    );
    h.done(&prompt);
    assert_eq!(h.step().slices.len(), 2);
    h.apply(Event::CancelChoice(RequestId(1), 2));
    assert_eq!(h.step().slices.len(), 1);
    h.apply(Event::Cancel(RequestId(1)));
    assert_eq!(
        [1, 2].map(|c| h.end_of(1, c)),
        [Some(Cancelled), Some(Cancelled)]
    );
    assert!(h.scheduler.is_idle() && h.memory_is_back());
}

#[test]
fn every_choice_has_its_place_from_admission_on() {
    // Three sequences may run: a request of two choices and one other, not two of them.
    let mut h = Harness::new(
        Config {
            max_running: 3,
            ..config()
        },
        pool(100),
    );
    h.arrive(choices(1, 2, 20, 5));
    h.arrive(choices(2, 2, 20, 5));
    h.arrive(choices(3, 1, 20, 5));
    assert_eq!(slices(&h.step()), [(1, 0, 20, true)]);
    while h.end_of(1, 1).is_none() {
        h.step();
    }
    let next: Vec<_> = slices(&h.step()).iter().map(|s| s.0).collect();
    assert_eq!(next, [2, 3]);
    h.run_dry();
}

#[test]
fn choices_are_preempted_one_by_one() {
    let mut h = Harness::new(config(), pool(20));
    h.arrive(choices(1, 3, 100, 80));
    h.run_dry();
    assert!(h.preemptions().len() >= 2);
    assert!((0..3).all(|c| h.end_of(1, c) == Some(Length)));
}

#[test]
fn choices_part_also_if_the_prompt_was_preempted_before_its_tokens_came() {
    let limits = Config {
        max_in_flight: 2,
        ..config()
    };
    let mut h = Harness::new(limits, pool(9));
    h.arrive(request(1, 15, 40));
    h.step();
    h.arrive(choices(2, 2, 128, 3));
    let prompt = h.planned();
    assert_eq!(slices(&prompt), [(1, 15, 1, true), (2, 0, 128, true)]);
    // Request 1 now needs a frame and none is free, while the step that ends the prompt is in
    // flight.
    assert!(h.plan().is_none());
    assert_eq!(h.preemptions(), [2]);
    assert_eq!(h.scheduler.awaited().count(), 3);
    h.done(&prompt);
    assert_eq!(
        h.scheduler.stats().waiting_preempted,
        2,
        "each choice waits for itself now"
    );
    h.run_dry();
    assert!((0..2).all(|c| h.end_of(2, c) == Some(Length)));
}
