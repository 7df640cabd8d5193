//! Where sequences have states: which are kept for prefixes, and what a failure costs.

mod common;

use common::{Harness, config, pool, request};
use ebb_block_manager::{PoolConfig, StateSlots};
use ebb_scheduler::{Config, Event, Request, RequestId, StepPlan};

/// Slots 0 to 7 are sequences', 8 to 11 are for states that are kept.
fn harness() -> Harness {
    harness_of(4)
}

fn harness_of(count: u32) -> Harness {
    let limits = Config {
        max_running: 8,
        ..config()
    };
    let states = Some(StateSlots { first: 8, count });
    let pool = PoolConfig {
        states,
        ..pool(1000)
    };
    Harness::new(limits, pool)
}

/// `shared` tokens that are alike in all requests, then some of its own.
fn alike(id: u64, shared: u32, own: u32) -> Request {
    let first = id as u32 * 100_000;
    let prompt: Vec<u32> = (0..shared).chain(first..first + own).collect();
    Request::new(RequestId(id), prompt, 4)
}

/// Position and length of the only slice.
fn slice(plan: &StepPlan) -> (u32, u32) {
    let [slice] = &plan.slices[..] else {
        panic!("one sequence runs: {plan:?}");
    };
    (slice.position, slice.tokens.end - slice.tokens.start)
}

type Pairs = Vec<(u32, u32)>;

/// Runs a request to its end; its slices, and the copies of states.
fn serve(h: &mut Harness, request: Request) -> (Pairs, Pairs) {
    h.arrive(request);
    let (mut slices, mut copies) = (Vec::new(), Vec::new());
    while let Some(plan) = h.plan() {
        slices.push(slice(&plan));
        copies.extend(&plan.state_copies);
        h.done_with(&plan, 7);
        h.scheduler.recycle(plan);
    }
    (slices, copies)
}

#[test]
fn a_prompt_ends_a_chunk_at_its_last_whole_block_and_keeps_the_state_there() {
    let mut h = harness();
    let (slices, copies) = serve(&mut h, request(1, 300, 4));
    assert_eq!(slices[..2], [(0, 256), (256, 44)]);
    assert_eq!(copies, [(0, 8)]);
    // The same prompt begins there.
    let (slices, copies) = serve(
        &mut h,
        Request::new(RequestId(2), request(1, 300, 4).prompt, 4),
    );
    assert_eq!(slices[0], (256, 44));
    assert_eq!(copies, [(8, 0)]);
}

#[test]
fn without_slots_prompts_are_not_cut() {
    let mut h = harness_of(0);
    let (slices, copies) = serve(&mut h, request(1, 300, 4));
    assert_eq!((slices[0], copies), ((0, 300), vec![]));
}

#[test]
fn an_answer_takes_no_second_slot_and_none_for_a_state_that_it_began_with() {
    let mut h = harness_of(2);
    serve(&mut h, request(1, 300, 4));
    // An answer over three blocks has one state at a time, and that of the prompt stays.
    let (slices, copies) = serve(&mut h, request(2, 100, 300));
    let kept: Vec<_> = copies.iter().map(|(_, slot)| *slot).collect();
    assert_eq!((slices[0], kept), ((0, 100), vec![9, 9, 9]));
    let known = [&request(2, 100, 300).prompt[..], &vec![7; 299]].concat();
    // What goes on behind it begins with it, and takes a slot at its own last whole block alone.
    let (slices, copies) = serve(&mut h, Request::new(RequestId(3), known[..385].to_vec(), 4));
    assert_eq!((slices[0], copies), ((384, 1), vec![(9, 0)]));
    let (slices, _) = serve(
        &mut h,
        Request::new(RequestId(4), request(1, 300, 4).prompt, 4),
    );
    assert_eq!(slices[0], (256, 44));
}

#[test]
fn where_prompts_part_a_state_is_kept_for_the_next() {
    let mut h = harness();
    // The first keeps the state at the end of its own prompt alone.
    serve(&mut h, alike(1, 200, 200));
    // The second finds the blocks of 128 tokens, and no state behind them.
    let (slices, copies) = serve(&mut h, alike(2, 200, 200));
    assert_eq!(slices[..3], [(0, 128), (128, 256), (384, 16)]);
    assert_eq!(copies, [(0, 9), (0, 10)]);
    // The third begins behind them.
    let (slices, copies) = serve(&mut h, alike(3, 200, 200));
    assert_eq!(slices[..2], [(128, 256), (384, 16)]);
    assert_eq!(copies[0], (9, 0));
}

#[test]
fn the_last_whole_block_of_an_answer_is_kept_in_place_of_the_one_before() {
    let mut h = harness();
    let mut request = request(1, 100, 300);
    request.max_tokens = 300;
    let (_, copies) = serve(&mut h, request.clone());
    // At 128, 256 and 384 tokens; each gives up the one before.
    assert_eq!(copies.len(), 3);
    let answer = vec![7; 299];
    let conversation = [&request.prompt[..], &answer[..], &[1, 2, 3]].concat();
    let (slices, _) = serve(&mut h, Request::new(RequestId(2), conversation, 4));
    assert_eq!(slices[0], (384, 18));
    let usage = h.scheduler.blocks().usage();
    assert_eq!(usage.sequences, 0);
}

#[test]
fn choices_that_fork_begin_with_the_state_of_the_prompt() {
    let mut h = harness();
    let mut request = request(1, 50, 4);
    request.n = 3;
    h.arrive(request);
    let plan = h.planned();
    assert_eq!(plan.state_copies, []);
    h.done_with(&plan, 7);
    let plan = h.planned();
    let slots: Vec<u32> = plan.slices.iter().map(|slice| slice.slot.0).collect();
    assert_eq!(slots.len(), 3);
    let copies: Vec<_> = slots[1..].iter().map(|slot| (slots[0], *slot)).collect();
    assert_eq!(plan.state_copies, copies);
}

#[test]
fn after_a_failure_all_begin_anew_and_no_state_is_trusted() {
    let mut h = harness();
    serve(&mut h, request(1, 300, 4));
    h.arrive(request(2, 200, 4));
    let plan = h.planned();
    h.done_with(&plan, 7);
    let plan = h.planned();
    assert_eq!(slice(&plan), (128, 72));
    h.apply(Event::StepFailed { step: plan.step });
    let plan = h.planned();
    assert_eq!(slice(&plan), (0, 128));
    h.done_with(&plan, 7);
    while let Some(plan) = h.plan() {
        h.done_with(&plan, 7);
    }
    let (slices, _) = serve(
        &mut h,
        Request::new(RequestId(3), request(1, 300, 4).prompt, 4),
    );
    assert_eq!(slices[0], (0, 256));
}
