//! Admission: rejections with their arithmetic, the queue's limit, headroom, prefix hits.

mod common;

use ebb_block_manager::precision::LevelTable;

use common::{Harness, config, pool, request, slices};
use ebb_scheduler::{Config, Notice, RejectReason, Request, RequestId};

fn rejection(h: &Harness) -> Option<String> {
    match h.notices.last() {
        Some(Notice::Rejected { reason, .. }) => Some(reason.to_string()),
        _ => None,
    }
}

#[test]
fn what_can_never_fit_is_turned_away_with_the_arithmetic() {
    // 20 frames hold 320 tokens; the last sampled token is never computed.
    let mut h = Harness::new(config(), pool(20));
    h.arrive(request(1, 300, 21));
    assert_eq!(rejection(&h), None);
    h.arrive(request(2, 300, 22));
    let Some(Notice::Rejected {
        request: id,
        reason,
    }) = h.notices.last()
    else {
        panic!("{:?}", h.notices);
    };
    assert_eq!(*id, RequestId(2));
    let expect = RejectReason::NeverFits {
        prompt_tokens: 300,
        max_tokens: 22,
        frames_needed: 21,
        bytes_needed: 21_000,
        frames_total: 20,
        bytes_total: 20_000,
    };
    assert_eq!(*reason, expect);
    assert_eq!(
        reason.to_string(),
        "300 prompt tokens and up to 22 generated ones need at least 21 frames of KV memory \
         (21000 bytes), but there are 20 (20000 bytes): shorten the prompt, lower max_tokens or \
         give the server more KV memory"
    );
    h.run_dry();
}

#[test]
fn frames_held_back_for_shrinking_do_not_count_as_room() {
    let mut small = pool(20);
    small.levels = LevelTable::of_frames(&[8, 5]);
    let mut h = Harness::new(config(), small);
    h.arrive(request(1, 240, 1));
    assert_eq!(rejection(&h), None);
    h.arrive(request(2, 241, 1));
    assert!(rejection(&h).is_some_and(|text| text.contains("there are 15 (15000 bytes)")));
    h.run_dry();
}

#[test]
fn what_makes_no_sense_is_turned_away() {
    let mut tables = pool(100);
    tables.max_blocks_per_seq = 2;
    let mut h = Harness::new(
        Config {
            max_running: 4,
            ..config()
        },
        tables,
    );
    h.arrive(request(1, 0, 5));
    assert_eq!(
        rejection(&h).as_deref(),
        Some("the prompt is empty: it needs at least one token")
    );
    for (id, n) in [(2, 0), (3, 5)] {
        h.arrive(Request {
            n,
            ..request(id, 10, 5)
        });
        let expect = format!("n is {n}: it must be from 1 to 4");
        assert!(rejection(&h).is_some_and(|text| text.starts_with(&expect)));
    }
    h.arrive(request(4, 250, 7));
    let expect = "make 257, more than the 256 that a sequence can hold";
    assert!(rejection(&h).is_some_and(|text| text.contains(expect)));
    h.arrive(request(5, 250, u32::MAX));
    assert!(rejection(&h).is_some_and(|text| text.contains("make 4294967545")));
    assert_eq!(h.scheduler.stats().requests_rejected, 5);
    assert!(h.scheduler.is_idle());
}

#[test]
fn running_sequences_keep_headroom_when_another_is_admitted() {
    // Two prompts of 64 tokens take 8 of 11 frames. Their next 16 tokens take one frame each, so a
    // third sequence finds 3 - 2 - 1 (its own headroom) = 0 frames for its prompt.
    let limits = Config {
        headroom_tokens: 16,
        ..config()
    };
    let mut h = Harness::new(limits, pool(11));
    for id in 1..=3 {
        h.arrive(request(id, 64, 16));
    }
    assert_eq!(slices(&h.step()).len(), 2);
    while h.end_of(1, 0).is_none() {
        h.step();
    }
    h.run_dry();
    assert_eq!(h.admissions().len(), 3);
    assert_eq!(h.preemptions(), [0; 0]);

    // Without headroom the third is admitted and another is preempted.
    let mut h = Harness::new(config(), pool(11));
    for id in 1..=3 {
        h.arrive(request(id, if id == 3 { 48 } else { 64 }, 16));
    }
    assert_eq!(slices(&h.step()).len(), 3);
    h.run_dry();
    assert!(!h.preemptions().is_empty());
}

#[test]
fn prompts_that_have_begun_keep_what_they_still_need() {
    // The first prompt needs 10 of 12 frames but holds one after its first chunk.
    let limits = Config {
        prefill_chunk: 16,
        ..config()
    };
    let mut h = Harness::new(limits, pool(12));
    h.arrive(request(1, 160, 1));
    h.step();
    h.arrive(request(2, 48, 1));
    assert_eq!(slices(&h.step()), [(1, 16, 16, false)]);
    h.run_dry();
    assert_eq!(h.preemptions(), [0; 0]);
}

#[test]
fn alone_a_sequence_may_take_the_whole_pool() {
    let limits = Config {
        headroom_tokens: 1000,
        ..config()
    };
    let mut h = Harness::new(limits, pool(20));
    h.arrive(request(1, 300, 21));
    h.arrive(request(2, 300, 21));
    h.run_dry();
    assert_eq!(h.admissions().len(), 2);
}

#[test]
fn a_known_prefix_is_not_computed_again() {
    let mut h = Harness::new(config(), pool(100));
    let first = request(1, 300, 2);
    let again = |id| Request {
        id: RequestId(id),
        ..first.clone()
    };
    h.arrive(first.clone());
    h.run_dry();
    h.arrive(again(2));
    let plan = h.step();
    assert_eq!(slices(&plan), [(2, 256, 44, true)]);
    // A prompt that is fully cached is computed from its last block on: there must be a token to
    // sample from.
    h.arrive(Request {
        prompt: first.prompt[..256].into(),
        ..again(3)
    });
    assert_eq!(
        h.step().slices.last().map(|s| (s.position, s.tokens.len())),
        Some((128, 128))
    );
    // A request for logits of the prompt computes all of it.
    h.arrive(Request {
        prompt_logprobs: true,
        ..again(4)
    });
    assert_eq!(
        h.step().slices.last().map(|s| (s.position, s.tokens.len())),
        Some((0, 300))
    );
    h.run_dry();
    assert_eq!(h.admissions(), [(1, 0), (2, 256), (3, 128), (4, 0)]);
    let stats = h.scheduler.stats();
    assert_eq!(
        (stats.prefix_query_tokens, stats.prefix_hit_tokens),
        (300 * 3 + 256, 256 + 128)
    );
}

#[test]
fn a_hit_counts_as_memory_it_does_not_need() {
    // 20 frames: one prompt of 16 blocks and another's tail fit beside the shared blocks.
    let mut h = Harness::new(config(), pool(20));
    let first = request(1, 260, 30);
    h.arrive(first.clone());
    h.step();
    h.arrive(Request {
        id: RequestId(2),
        ..first
    });
    let plan = h.step();
    assert_eq!(slices(&plan), [(1, 260, 1, true), (2, 256, 4, true)]);
    h.run_dry();
}
