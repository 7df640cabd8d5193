//! Bugs of the caller panic with a sentence; shapes that cannot work are errors.

use super::*;
use ebb_block_manager::{
    ConfigError, PoolConfig,
    precision::{LevelTable, MinBits},
};

#[test]
#[should_panic(expected = "sequence 1 is unknown here")]
fn an_unknown_sequence() {
    pool(64).frames_needed(A, 1);
}

#[test]
#[should_panic(expected = "sequence 1 is alive already")]
fn a_sequence_twice() {
    let mut pool = pool(64);
    pool.create(A, &[], 0);
    pool.create(A, &[], 0);
}

#[test]
#[should_panic(expected = "commits 17 tokens after 0, but memory was allocated for 16")]
fn more_committed_than_granted() {
    let mut pool = pool(64);
    pool.create(A, &[], 0);
    pool.grow(A, 16).expect("there is room");
    pool.commit(A, &[1; 17]);
}

#[test]
#[should_panic(expected = "its table row ends at 16384")]
fn longer_than_a_row() {
    let mut pool = pool(64);
    pool.create(A, &[], 0);
    let _ = pool.grow(A, 16385);
}

fn error(change: impl FnOnce(&mut PoolConfig)) -> ConfigError {
    let mut config = config(64, 1);
    change(&mut config);
    BlockManager::new(config).expect_err("the shape cannot work")
}

#[test]
fn shapes_that_cannot_work_are_refused_with_a_reason() {
    use ConfigError::{LevelFrames, LevelZero, Sink, TooLarge, TooSmall, Zero};
    assert_eq!(
        error(|c| c.frame_bytes = 0),
        Zero {
            field: "frame_bytes"
        }
    );
    assert!(matches!(
        error(|c| c.frames_per_sub_block = 5000),
        TooLarge { max: 4096, .. }
    ));
    assert!(matches!(
        error(|c| c.levels = LevelTable::of_frames(&[4])),
        LevelZero {
            expected: 8,
            found: 4
        }
    ));
    assert!(matches!(
        error(|c| c.levels = LevelTable::of_frames(&[8, 4, 0])),
        LevelFrames {
            level: 2,
            frames: 0,
            block: 8
        }
    ));
    let sink = error(|c| (c.protected, c.sink) = (MinBits(8), MinBits(4)));
    assert!(matches!(
        sink,
        Sink {
            sink: 4,
            protected: 8
        }
    ));
    assert!(sink.to_string().contains("shrink no further"), "{sink}");
    let small = error(|c| (c.frames, c.levels) = (11, LevelTable::of_frames(&[8, 4])));
    assert!(matches!(
        small,
        TooSmall {
            block: 8,
            shrink_reserve: 4,
            ..
        }
    ));
    assert!(
        small.to_string().contains("at least 49152 bytes"),
        "{small}"
    );
}
