//! Planning a step while the one before runs.

mod common;

use common::{Harness, config, outputs, pool, request, slices, tokens};
use ebb_scheduler::FinishReason::{Length, Stop};
use ebb_scheduler::{Config, Event, Request, SAMPLED_LATER};

fn two() -> Config {
    Config {
        max_in_flight: 2,
        ..config()
    }
}

#[test]
fn the_next_step_refers_to_tokens_that_are_still_being_sampled() {
    let mut h = Harness::new(two(), pool(100));
    h.arrive(request(1, 10, 4));
    let first = h.planned();
    let second = h.planned();
    assert_eq!(slices(&second), [(1, 10, 1, true)]);
    assert_eq!(second.tokens, [SAMPLED_LATER]);
    assert!(h.plan().is_none(), "two are out");
    h.done_with(&first, 40);
    let third = h.planned();
    assert_eq!(
        (slices(&third), &third.tokens[..]),
        (vec![(1, 11, 1, true)], &[SAMPLED_LATER][..])
    );
    h.done_with(&second, 41);
    let fourth = h.planned();
    h.done_with(&third, 42);
    // Four tokens are sampled or being sampled: nothing more to plan.
    assert!(h.plan().is_none());
    h.done_with(&fourth, 43);
    assert_eq!(h.end_of(1, 0), Some(Length));
    assert!(h.scheduler.is_idle() && h.memory_is_back());
}

#[test]
fn what_a_finished_sequence_does_in_a_later_step_is_ignored() {
    let mut h = Harness::new(two(), pool(100));
    h.arrive(request(1, 10, 40));
    let first = h.planned();
    let second = h.planned();
    let mut sampled = outputs(&first, 5);
    sampled[0].finish = true;
    h.apply(Event::StepDone {
        step: first.step,
        outputs: sampled,
        failed_shrinks: Vec::new(),
    });
    assert_eq!(h.end_of(1, 0), Some(Stop));
    assert_eq!(h.scheduler.awaited().count(), 0);
    let usage = h.scheduler.blocks().usage();
    assert_eq!(
        (usage.frames_live, usage.frames_retiring),
        (0, 1),
        "the second step may touch it"
    );
    h.done(&second);
    assert!(h.scheduler.is_idle() && h.memory_is_back());
}

#[test]
fn chunks_of_a_prompt_follow_each_other_without_a_gap() {
    let mut h = Harness::new(
        Config {
            prefill_chunk: 30,
            ..two()
        },
        pool(100),
    );
    h.arrive(request(1, 70, 2));
    let first = h.planned();
    let second = h.planned();
    h.done(&first);
    let third = h.planned();
    let all = [first, second, third];
    let found: Vec<_> = all.iter().flat_map(slices).collect();
    assert_eq!(
        found,
        [(1, 0, 30, false), (1, 30, 30, false), (1, 60, 10, true)]
    );
    h.done(&all[1]);
    h.done(&all[2]);
    h.run_dry();
}

#[test]
fn choices_wait_for_their_first_tokens() {
    let mut h = Harness::new(two(), pool(100));
    h.arrive(Request {
        n: 2,
        ..request(1, 10, 3)
    });
    let first = h.planned();
    assert!(h.plan().is_none());
    h.done_with(&first, 8);
    let second = h.planned();
    assert_eq!(second.tokens, [8, 8]);
    let third = h.planned();
    assert_eq!(third.tokens, [SAMPLED_LATER; 2]);
    h.done(&second);
    h.done(&third);
    assert!(h.scheduler.is_idle());
}

#[test]
fn memory_that_is_coming_back_is_waited_for_instead_of_preempting() {
    let mut h = Harness::new(two(), pool(12));
    h.arrive(request(1, 14, 100));
    h.arrive(request(2, 127, 2));
    h.arrive(request(3, 40, 100));
    h.step();
    let second = h.planned();
    let third = h.planned();
    h.done(&second);
    // Request 2 is done and its block is cached, but the third step may still touch it when
    // request 1 needs a frame: it can be evicted after that.
    assert_eq!(h.end_of(2, 0), Some(Length));
    assert_eq!(
        (
            h.scheduler.blocks().usage().frames_cached,
            h.scheduler.blocks().available()
        ),
        (8, 0)
    );
    let fourth = h.planned();
    assert_eq!(slices(&fourth), [(3, 42, 1, true)]);
    h.done(&third);
    assert_eq!(slices(&h.planned()), [(1, 16, 1, true), (3, 43, 1, true)]);
    assert_eq!(h.preemptions(), [0; 0]);
}

#[test]
fn tokens_sampled_for_a_preempted_sequence_are_kept() {
    let mut h = Harness::new(two(), pool(8));
    h.arrive(request(1, 50, 70));
    h.arrive(request(2, 50, 70));
    let mut out = std::collections::VecDeque::new();
    let mut sampled = 0;
    let mut checked = false;
    for _ in 0..1000 {
        while let Some(plan) = h.plan() {
            if let Some(slice) = plan.slices.iter().find(|s| s.request.0 == 2)
                && !h.preemptions().is_empty()
                && slice.position == 0
            {
                // Everything sampled so far is computed again, including tokens that were being
                // sampled when it was preempted.
                let expect: Vec<u32> = (0..sampled).map(|i| 1000 + i).collect();
                let known = &tokens(&plan, slice)[50..];
                assert_eq!(known, expect);
                checked = true;
            }
            out.push_back(plan);
        }
        let Some(plan) = out.pop_front() else { break };
        let awaited: Vec<_> = h.scheduler.awaited().collect();
        let mut outputs = outputs(&plan, 3);
        for output in outputs.iter_mut().filter(|o| o.request.0 == 2) {
            assert!(awaited.contains(&(output.request, 0)));
            output.token = 1000 + sampled;
            sampled += 1;
        }
        h.apply(Event::StepDone {
            step: plan.step,
            outputs,
            failed_shrinks: Vec::new(),
        });
    }
    assert!(h.scheduler.is_idle() && checked);
    assert_eq!(sampled, 70);
}
