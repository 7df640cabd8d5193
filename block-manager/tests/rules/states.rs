use super::*;
use ebb_block_manager::{PoolConfig, StateSlots};

/// A pool with slots 4 and 5 for states.
fn pool() -> BlockManager {
    let states = Some(StateSlots { first: 4, count: 2 });
    let config = PoolConfig {
        states,
        ..config(200, 1)
    };
    BlockManager::new(config).expect("the shape is valid")
}

/// Keeps the state behind what a sequence has committed.
fn keep(pool: &mut BlockManager, seq: SeqId) -> u32 {
    let slot = pool.take_state().expect("there are slots");
    pool.keep_state(seq, slot)
        .expect("its blocks are published");
    pool.check().expect("the pool is sound");
    slot
}

#[test]
fn a_prompt_begins_only_where_a_state_is_kept() {
    let mut pool = pool();
    let prompt = text(1, 400);
    pool.create(A, &prompt, 399);
    extend(&mut pool, A, &prompt[..256]);
    let slot = keep(&mut pool, A);
    extend(&mut pool, A, &prompt[256..]);
    let hit = pool.lookup(&prompt, 399);
    assert_eq!((hit.tokens, hit.alike), (256, 384));
    let created = pool.create(B, &prompt, 399);
    assert_eq!((created.cached_tokens, created.alike_tokens), (256, 384));
    assert_eq!(created.state, Some(slot));
    // Not where the limit is before it.
    assert_eq!(pool.lookup(&prompt, 255).tokens, 0);
}

#[test]
fn the_state_that_was_used_longest_ago_is_given_up() {
    let mut pool = pool();
    let texts = [text(1, 130), text(2, 130), text(3, 130)];
    let seqs = [A, B, C];
    let mut slots = Vec::new();
    for (seq, text) in seqs.into_iter().zip(&texts).take(2) {
        pool.create(seq, text, 129);
        extend(&mut pool, seq, &text[..128]);
        slots.push(keep(&mut pool, seq));
    }
    assert_eq!(slots, [4, 5]);
    // The first is used again.
    pool.release(A);
    assert_eq!(pool.create(A, &texts[0], 129).state, Some(4));
    pool.create(C, &texts[2], 129);
    extend(&mut pool, C, &texts[2][..128]);
    assert_eq!(keep(&mut pool, C), 5);
    let found = texts.map(|text| pool.lookup(&text, 129).tokens);
    assert_eq!(found, [128, 0, 128]);
}

#[test]
fn a_state_goes_with_its_blocks_and_on_request() {
    let mut pool = pool();
    let prompt = text(1, 130);
    pool.create(A, &prompt, 129);
    extend(&mut pool, A, &prompt[..128]);
    let slot = pool.take_state().expect("a slot");
    let state = pool.keep_state(A, slot).expect("it is kept");
    // A second one of the same blocks is not needed.
    let second = pool.take_state().expect("a slot");
    assert_eq!(pool.keep_state(A, second), None);
    pool.check().expect("the pool is sound");
    // It has been used since, so this is another.
    pool.forget_state(state);
    assert_eq!(pool.lookup(&prompt, 129).tokens, 128);
    pool.forget_states();
    pool.check().expect("the pool is sound");
    assert_eq!(pool.lookup(&prompt, 129).tokens, 0);
    // Nobody else begins so, and the blocks are evicted.
    keep(&mut pool, A);
    pool.release(A);
    run(&mut pool, B, &text(2, 199 * 16));
    assert_eq!(pool.lookup(&prompt, 129).alike, 0);
    let [a, b] = [pool.take_state(), pool.take_state()];
    assert!(a.is_some() && b.is_some() && pool.take_state().is_none());
}
