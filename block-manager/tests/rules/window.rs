//! Sliding windows. A sub-block has two frames, and one of them is windowed.

use super::*;
use ebb_block_manager::{
    ConfigError, NO_FRAME, PoolConfig, SUB_BLOCKS, StepId, precision::MinBits,
};

/// A pool of `frames` frames, with a window of `tokens` tokens in half of the layers.
fn windowed(frames: u32, tokens: u32) -> PoolConfig {
    let mut config = config(frames, 2);
    config.window = Some(common::window(&config, tokens));
    config
}

fn pool(frames: u32, tokens: u32) -> BlockManager {
    BlockManager::new(windowed(frames, tokens)).expect("the shape is valid")
}

fn trimmed(pool: &BlockManager) -> u32 {
    pool.level_use().map(|level| level.trimmed).sum()
}

#[test]
fn a_sequence_alone_keeps_half_of_what_lies_behind_its_window() {
    // 64 blocks: half of each, and all of the two or three that the window touches.
    let (blocks, tokens) = (64, 200);
    let config = windowed(0, tokens);
    let most = config.frames_at_16_bit(blocks * 128, 128);
    assert_eq!(most, 64 * 8 + 4 * 8);
    let mut pool = pool(most as u32, tokens);
    let text = text(1, 64 * 128);
    pool.create(A, &text, 0);
    for chunk in text.chunks(100) {
        extend(&mut pool, A, chunk);
    }
    assert!(trimmed(&pool) >= 60, "{} blocks", trimmed(&pool));
    let table = pool.table(A);
    let (_, first) = table.get(0).expect("it has blocks");
    for (index, frame) in first.iter().enumerate() {
        assert_eq!(*frame == NO_FRAME, index % 2 == 1);
    }
    let (_, last) = table.get(63).expect("it has blocks");
    assert!(!last.contains(&NO_FRAME));
}

#[test]
fn what_nobody_sees_is_kept_until_memory_is_asked_for_and_then_goes_by_age() {
    let mut pool = pool(12 * 16, 128);
    let (first, second) = (text(1, 4 * 128), text(2, 4 * 128));
    // Its blocks are cached before those of the other are hidden.
    run(&mut pool, A, &first);
    pool.release(A);
    run(&mut pool, B, &second);
    let usage = pool.usage();
    // The last of four blocks is seen from the place behind it.
    assert_eq!((usage.frames_cached, usage.frames_hidden), (64, 3 * 8));
    assert_eq!(pool.available(), pool.config().frames - (usage.frames_live));
    // Half of the cache makes room for a third sequence, and nothing is trimmed.
    run(&mut pool, C, &text(3, 5 * 128));
    assert_eq!((pool.usage().frames_cached, trimmed(&pool)), (48, 0));
    // All of it, and then the oldest hidden blocks.
    extend(&mut pool, C, &text(4, 4 * 128));
    assert_eq!((pool.usage().frames_cached, trimmed(&pool)), (0, 2));
    let (_, oldest) = pool.table(B).get(0).expect("it has blocks");
    assert!(oldest.contains(&NO_FRAME));
}

#[test]
fn a_prompt_is_found_up_to_where_its_window_is_whole() {
    let mut pool = pool(11 * 16, 128);
    let prompt = text(1, 6 * 128);
    run(&mut pool, A, &prompt);
    // Hidden blocks serve others: whole prompts, and their beginnings.
    for blocks in 1..=6 {
        let found = pool.lookup(&prompt[..blocks * 128], blocks * 128);
        assert_eq!(found.tokens, blocks * 128);
    }
    // The sequence grows until the first three blocks are trimmed.
    extend(&mut pool, A, &text(2, 6 * 128 + 64));
    assert_eq!(trimmed(&pool), 3);
    let found = |blocks: usize| pool.lookup(&prompt[..blocks * 128], blocks * 128).tokens / 128;
    // What follows a trimmed block needs it only within the window.
    assert_eq!([1, 2, 3, 4, 5, 6].map(found), [0, 0, 0, 4, 5, 6]);
    // Whoever shares the chain has the trimmed blocks behind its window, too.
    let created = pool.create(B, &prompt, 5 * 128);
    assert_eq!(created.cached_tokens, 5 * 128);
    pool.check().expect("the pool is sound");
}

#[test]
fn a_block_computed_again_whole_replaces_one_that_is_trimmed() {
    let mut pool = pool(9 * 16, 128);
    let prompt = text(1, 3 * 128);
    run(&mut pool, A, &prompt);
    extend(&mut pool, A, &text(2, 6 * 128));
    assert_eq!(pool.lookup(&prompt, 128).tokens, 128);
    // Two more blocks take the windowed frames of the four oldest.
    extend(&mut pool, A, &text(3, 2 * 128));
    assert_eq!((trimmed(&pool), pool.lookup(&prompt, 128).tokens), (4, 0));
    run(&mut pool, B, &prompt[..129]);
    assert_eq!(pool.lookup(&prompt, 128).tokens, 128);
}

#[test]
fn steps_in_flight_keep_what_they_see() {
    let mut pool = pool(64, 128);
    let prompt = text(1, 3 * 128);
    pool.create(A, &prompt, 0);
    pool.grow(A, 2 * 128).expect("there is room");
    pool.begin_step(StepId(1));
    pool.commit(A, &prompt[..128]);
    let before = pool.available();
    // The next token sees one block back, and so does the step in flight.
    pool.commit(A, &prompt[128..256]);
    assert_eq!((pool.usage().frames_hidden, pool.available()), (8, before));
    pool.retire_step(StepId(1));
    assert_eq!(pool.available(), before + 8);
}

#[test]
fn a_hidden_block_is_trimmed_before_it_shrinks() {
    let mut config = windowed(160, 128);
    config.levels = common::levels(16);
    config.window = Some(common::window(&config, 128));
    let mut pool = BlockManager::new(config).expect("the shape is valid");
    run(&mut pool, A, &text(1, 4 * 128));
    let block = pool.table(A).ids()[1];
    let free = pool.usage().frames_free;
    let job = pool.shrink(block).expect("there is room").expect("it can");
    let missing = |frames: &[u32]| frames.iter().filter(|f| **f == NO_FRAME).count();
    assert_eq!(missing(&job.old), SUB_BLOCKS);
    assert!(missing(&job.new) > 0);
    let new = job.new.len() - missing(&job.new);
    assert_eq!(pool.usage().frames_free as usize, free as usize + 8 - new);
    assert_eq!(job.frames_freed(), 8 - new);
    pool.begin_step(StepId(1));
    pool.retire_step(StepId(1));
    pool.check().expect("the pool is sound");
    let (level, frames) = pool.table(A).get(1).expect("it has blocks");
    assert_eq!((level, frames.len()), (job.to, job.new.len()));
}

#[test]
fn a_promise_counts_blocks_behind_the_window_without_what_they_give_back() {
    let mut config = config(1000, 2);
    config.levels = common::levels(16);
    let floor = |config: &PoolConfig| config.floor_frames(64 * 128, MinBits::ANY, 0);
    // Before the last block is sealed: the first and the last sealed block at 8 bit, the open one
    // at 16, and 61 at 2.
    assert_eq!(floor(&config), 8 + 8 + 16 + 61 * 2);
    config.window = Some(common::window(&config, 256));
    // The window may touch four blocks. Behind it half of each is left.
    assert_eq!(floor(&config), 4 + 8 + 16 + 2 * 2 + 59);
}

#[test]
fn what_contradicts_itself_is_refused() {
    let refused = |change: fn(&mut PoolConfig)| {
        let mut config = windowed(1000, 128);
        change(&mut config);
        BlockManager::new(config).expect_err("it is wrong")
    };
    let window = |config: &mut PoolConfig| config.window.take().expect("it has one");
    let zero = refused(|c| c.window.as_mut().expect("one").tokens = 0);
    assert!(matches!(zero, ConfigError::Zero { .. }));
    for kept in [0, 3] {
        let wrong = match kept {
            0 => refused(|c| c.window.as_mut().expect("one").kept_per_sub_block = 0),
            _ => refused(|c| c.window.as_mut().expect("one").kept_per_sub_block = 3),
        };
        assert!(matches!(wrong, ConfigError::Window { .. }), "{wrong}");
    }
    let levels = refused(|c| c.levels = common::levels(16));
    assert!(
        levels.to_string().contains("the number of levels"),
        "{levels}"
    );
    let mut config = windowed(1000, 128);
    window(&mut config);
    assert!(BlockManager::new(config).is_ok());
}

#[test]
fn tokens_are_shared_where_others_hold_their_blocks_trimmed_or_not() {
    let mut pool = pool(9 * 16, 128);
    let prompt = text(1, 4 * 128);
    run(&mut pool, A, &prompt);
    // A sequence alone shares nothing, however much of it is trimmed.
    extend(&mut pool, A, &text(2, 6 * 128));
    assert!(trimmed(&pool) > 0);
    assert_eq!(pool.shared_tokens(A), 0);
    let created = pool.create(B, &prompt, 3 * 128);
    let shared = created.cached_tokens;
    assert!(shared > 0);
    assert_eq!(
        (pool.shared_tokens(A), pool.shared_tokens(B)),
        (shared, shared)
    );
    pool.release(B);
    assert_eq!(pool.shared_tokens(A), 0);
}
