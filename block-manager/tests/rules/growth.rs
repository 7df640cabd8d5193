use super::*;
use ebb_block_manager::OutOfFrames;

#[test]
fn a_sequence_takes_a_sub_block_for_each_16_tokens_begun() {
    let mut pool = pool(64);
    pool.create(A, &[], 0);
    for (len, frames) in [
        (0, 0),
        (1, 1),
        (16, 1),
        (17, 2),
        (128, 8),
        (129, 9),
        (300, 19),
    ] {
        assert_eq!(
            pool.frames_needed(A, len) + pool.usage().frames_live,
            frames,
            "{len} tokens"
        );
        pool.grow(A, len).expect("there is room");
        assert_eq!(pool.usage().frames_live, frames, "{len} tokens");
    }
    assert_eq!(pool.table(A).len(), 3);
}

#[test]
fn growing_to_what_is_granted_changes_nothing() {
    let mut pool = pool(64);
    pool.create(A, &[], 0);
    pool.grow(A, 40).expect("there is room");
    let before = frames(&pool, A);
    assert_eq!(pool.frames_needed(A, 20), 0);
    pool.grow(A, 20).expect("nothing is needed");
    pool.grow(A, 48).expect("the sub-block has room");
    assert_eq!(frames(&pool, A), before);
}

#[test]
fn growth_is_all_or_nothing_and_tells_what_is_missing() {
    let mut pool = pool(10);
    run(&mut pool, A, &text(1, 100));
    assert_eq!(pool.available(), 3);
    assert_eq!(pool.grow(A, 200), Err(OutOfFrames { missing: 3 }));
    assert_eq!((pool.available(), pool.usage().frames_live), (3, 7));
    pool.grow(A, 160).expect("it fits exactly");
    assert_eq!(pool.available(), 0);
    pool.check().expect("the pool is sound");
}

#[test]
fn bytes_tell_used_from_reserved() {
    let mut pool = pool(64);
    run(&mut pool, A, &text(1, 130));
    let usage = pool.usage();
    // Nine sub-blocks of 16 tokens, one frame of 4096 bytes each; the last one holds 2 tokens.
    assert_eq!(usage.bytes_reserved_empty, 14 * 4096 / 16);
    assert_eq!(usage.bytes_used, 130 * 4096 / 16);
    assert_eq!((usage.frames_live, usage.frames_free), (9, 55));
}

#[test]
fn tables_change_by_deltas_that_name_every_frame() {
    use ebb_block_manager::TableDelta::{Block, Frame, Row};
    let mut pool = pool(64);
    let slot = pool.create(A, &[], 0).slot;
    pool.grow(A, 20).expect("there is room");
    let mut deltas = Vec::new();
    pool.drain_deltas(&mut deltas);
    let (block, frames) = (pool.table(A).ids()[0], frames(&pool, A));
    let expected = [
        Block { block, level: 0 },
        Frame {
            block,
            index: 0,
            frame: frames[0],
        },
        Frame {
            block,
            index: 1,
            frame: frames[1],
        },
        Row {
            slot,
            index: 0,
            block,
        },
    ];
    assert_eq!(deltas, expected);
    deltas.clear();
    pool.grow(A, 32).expect("the sub-block has room");
    pool.drain_deltas(&mut deltas);
    assert_eq!(deltas, []);
}

#[test]
fn a_row_is_reused_after_its_sequence() {
    let mut pool = pool(64);
    let slots = [A, B].map(|seq| pool.create(seq, &[], 0).slot);
    assert_ne!(slots[0], slots[1]);
    pool.release(A);
    assert_eq!(pool.create(C, &[], 0).slot, slots[0]);
}
