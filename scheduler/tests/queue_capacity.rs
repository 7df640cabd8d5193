//! How many requests may arrive: what `max_waiting` counts.

mod common;

use common::{Harness, config, outputs, pool, request};
use ebb_block_manager::precision::LevelTable;
use ebb_scheduler::{Admission, Config, Event, Mode, Notice, Request, RequestId, Scheduler};
use proptest::prelude::*;

fn limits(max_running: usize, max_waiting: usize) -> Config {
    Config {
        max_running,
        max_waiting,
        ..config()
    }
}

/// Whether a request is taken.
fn is_taken(h: &mut Harness, request: Request) -> bool {
    let rejected = h.scheduler.stats().requests_rejected;
    h.arrive(request);
    h.scheduler.stats().requests_rejected == rejected
}

/// How many requests like those of `make` are taken until one is refused.
fn taken(h: &mut Harness, ids: std::ops::Range<u64>, make: impl Fn(u64) -> Request) -> usize {
    ids.take_while(|id| is_taken(h, make(*id))).count()
}

#[test]
fn the_queue_is_bounded_beyond_the_free_places() {
    let mut h = Harness::new(limits(1, 2), pool(100));
    for id in 1..=3 {
        assert!(is_taken(&mut h, request(id, 10, 3)), "one runs, two wait");
    }
    h.arrive(request(4, 10, 3));
    let Some(Notice::Rejected { reason, .. }) = h.notices.last() else {
        panic!("{:?}", h.notices);
    };
    assert_eq!(
        reason.to_string(),
        "the queue is full: 3 requests are waiting, and at most 2 may wait without a free batch \
         slot: try again later"
    );
    h.step();
    assert!(
        !is_taken(&mut h, request(5, 10, 3)),
        "one runs and two wait"
    );
    h.step();
    h.step();
    assert!(h.end_of(1, 0).is_some(), "its place is free");
    assert!(is_taken(&mut h, request(6, 10, 3)));
    assert!(!is_taken(&mut h, request(7, 10, 3)));
    h.run_dry();
    assert_eq!(h.admissions(), [(1, 0), (2, 0), (3, 0), (6, 0)]);
}

#[test]
fn an_idle_engine_takes_a_burst_whatever_one_step_can_admit() {
    // A step has tokens for one prompt: the others wait for the next step and not for a batch slot.
    let narrow = Config {
        max_step_tokens: 100,
        max_logit_rows: 100,
        ..limits(8, 2)
    };
    let mut h = Harness::new(narrow, pool(1000));
    assert_eq!(taken(&mut h, 0..20, |id| request(id, 100, 5)), 10);
    h.step();
    assert_eq!(h.admissions().len(), 1);
    assert!(!is_taken(&mut h, request(20, 100, 5)));
    h.run_dry();
    assert_eq!(h.admissions().len(), 10);
}

#[test]
fn each_choice_takes_a_place() {
    let mut h = Harness::new(limits(4, 1), pool(1000));
    let two = |id| Request {
        n: 2,
        ..request(id, 10, 3)
    };
    // Two requests of two choices fill the batch; one more may wait.
    assert_eq!(taken(&mut h, 0..9, two), 3);
    h.apply(Event::CancelChoice(RequestId(0), 1));
    assert!(
        !is_taken(&mut h, request(10, 10, 3)),
        "five of four places and one to wait"
    );
    h.apply(Event::CancelChoice(RequestId(2), 0));
    assert!(is_taken(&mut h, two(11)), "four of five");
    assert!(!is_taken(&mut h, request(12, 10, 3)));
    h.step();
    assert_eq!(h.admissions(), [(0, 0), (1, 0), (2, 0)]);
    assert!(
        !is_taken(&mut h, request(13, 10, 3)),
        "all places are taken, and 11 waits"
    );
    h.apply(Event::Cancel(RequestId(1)));
    assert!(
        is_taken(&mut h, request(14, 10, 3)),
        "two places for 11, and room to wait"
    );
    h.run_dry();
}

/// Pools and modes in which three requests of 100 tokens fit, and a fourth does not.
fn short_of_memory() -> [(Config, ebb_block_manager::PoolConfig); 3] {
    let mut shrinking = pool(24 + 5);
    shrinking.levels = LevelTable::of_frames(&[8, 5]);
    let mode = |mode, admission| Config {
        mode,
        admission,
        ..limits(16, 2)
    };
    [
        (mode(Mode::PreemptOnly, Admission::Degrade), pool(24)),
        (
            mode(Mode::Progressive, Admission::Degrade),
            shrinking.clone(),
        ),
        (mode(Mode::Progressive, Admission::Queue), shrinking),
    ]
}

#[test]
fn places_that_memory_keeps_empty_are_not_free() {
    for (config, pool) in short_of_memory() {
        let mode = (config.mode, config.admission);
        let mut h = Harness::new(config, pool);
        for id in 1..=5 {
            assert!(is_taken(&mut h, request(id, 100, 12)));
        }
        let plan = h.planned();
        assert_eq!(h.admissions().len(), 3, "{mode:?}");
        // Thirteen batch slots are free, but two wait for memory, and no more may.
        assert!(!is_taken(&mut h, request(6, 100, 12)), "{mode:?}");
        h.done(&plan);
        // Once a request has ended there may be memory for any other.
        h.apply(Event::Cancel(RequestId(1)));
        assert!(is_taken(&mut h, request(7, 100, 12)), "{mode:?}");
        h.plan();
        assert!(
            !is_taken(&mut h, request(8, 100, 12)),
            "{mode:?}: two wait again"
        );
        // The head of the queue changes.
        h.apply(Event::Cancel(RequestId(5)));
        h.apply(Event::Cancel(RequestId(7)));
        assert_eq!(h.scheduler.stats().waiting, 0, "{mode:?}");
        assert_eq!(
            taken(&mut h, 20..60, |id| request(id, 1, 1)),
            15,
            "{mode:?}"
        );
    }
}

/// What was done to a scheduler.
#[derive(Clone, Debug)]
enum Op {
    Event(Event),
    Plan,
}

fn scheduler(config: &Config, pool: &ebb_block_manager::PoolConfig, done: &[Op]) -> Scheduler {
    let mut scheduler = Scheduler::new(config.clone(), pool.clone()).expect("valid");
    for op in done {
        match op {
            Op::Event(event) => scheduler.apply(event.clone()),
            Op::Plan => drop(scheduler.plan()),
        }
    }
    scheduler
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A rejected request would not have been admitted by the next plan: a second scheduler that
    /// never rejects shows it. And what is taken is bounded.
    #[test]
    fn who_is_refused_would_have_had_to_wait(
        (max_running, max_waiting) in (1usize..6, 1usize..4),
        mode in prop::sample::select(&Mode::ALL[..]),
        admission in prop::sample::select(&[Admission::Degrade, Admission::Queue][..]),
        sub_blocks in 13u32..60,
        depth in 1usize..3,
        rows in prop::sample::select(&[6usize, 40, 10_000][..]),
        moves in prop::collection::vec((0u8..10, 1u32..100, 1u32..12, 1u32..4), 1..80),
    ) {
        let config = Config {
            mode,
            admission,
            max_in_flight: depth,
            max_step_tokens: rows,
            ..limits(max_running, max_waiting)
        };
        let endless = Config { max_waiting: 1 << 20, ..config.clone() };
        let mut pool = pool(sub_blocks);
        pool.levels = LevelTable::of_frames(&[8, 5]);
        let (mut done, mut plans, mut notices) = (Vec::new(), Vec::new(), Vec::new());
        let mut subject = scheduler(&config, &pool, &[]);
        let mut one_each = true;
        for (id, (kind, prompt, answer, n)) in moves.into_iter().enumerate() {
            let op = match kind {
                // Most of what happens are arrivals, so that queues fill; most have one choice.
                0..=5 => {
                    let n = if kind == 5 { n.min(max_running as u32) } else { 1 };
                    one_each &= n == 1;
                    Op::Event(Event::Arrive(Request { n, ..request(id as u64, prompt, answer) }))
                }
                6 => Op::Event(Event::Cancel(RequestId(u64::from(prompt) % (id as u64 + 1)))),
                7 | 8 => Op::Plan,
                _ if plans.is_empty() => continue,
                _ => {
                    let plan: ebb_scheduler::StepPlan = plans.remove(0);
                    let (step, outputs) = (plan.step, outputs(&plan, 7));
                    Op::Event(Event::StepDone { step, outputs, failed_shrinks: Vec::new() })
                }
            };
            match &op {
                Op::Event(event) => subject.apply(event.clone()),
                Op::Plan => plans.extend(subject.plan()),
            }
            subject.check().map_err(TestCaseError::fail)?;
            notices.clear();
            subject.drain_notices(&mut notices);
            let full = |notice: &Notice| matches!(
                notice,
                Notice::Rejected { reason: ebb_scheduler::RejectReason::QueueFull { .. }, .. }
            );
            if notices.iter().any(full) {
                let mut twin = scheduler(&endless, &pool, &done);
                let Op::Event(Event::Arrive(request)) = op else { unreachable!() };
                let id = request.id;
                twin.apply(Event::Arrive(request));
                twin.plan();
                let mut heard = Vec::new();
                twin.drain_notices(&mut heard);
                let admitted = |notice: &Notice| matches!(
                    notice, Notice::Admitted { request, .. } if *request == id
                );
                prop_assert!(!heard.iter().any(admitted), "{id} would have run at once");
                continue;
            }
            done.push(op);
            let stats = subject.stats();
            prop_assert!(!one_each || stats.running + stats.waiting <= max_running + max_waiting);
        }
    }
}
