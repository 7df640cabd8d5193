use super::*;
use ebb_block_manager::{PrefixCursor, PrefixHit, SeqOptions, precision::MinBits};

fn hit(tokens: usize, frames_revived: u32) -> PrefixHit {
    PrefixHit {
        tokens,
        alike: tokens,
        frames_revived,
    }
}

#[test]
fn only_whole_blocks_within_the_limit_are_found() {
    let mut pool = pool(64);
    let prompt = text(1, 300);
    run(&mut pool, A, &prompt);
    for (max, found) in [
        (0, 0),
        (127, 0),
        (128, 128),
        (255, 128),
        (256, 256),
        (300, 256),
    ] {
        assert_eq!(pool.lookup(&prompt, max), hit(found, 0), "at most {max}");
    }
    assert_eq!(pool.lookup(&prompt[..200], 500), hit(128, 0));
}

#[test]
fn one_other_token_ends_the_match_and_a_block_counts_only_in_its_place() {
    let mut pool = pool(64);
    let prompt = text(1, 256);
    run(&mut pool, A, &prompt);
    for changed in [0, 64, 127, 128, 255] {
        let mut other = prompt.clone();
        other[changed] += 1;
        assert_eq!(
            pool.lookup(&other, 256).tokens,
            changed / 128 * 128,
            "token {changed}"
        );
    }
    assert_eq!(pool.lookup(&prompt[128..], 128).tokens, 0);
}

#[test]
fn a_live_block_is_shared_and_a_cached_one_revived() {
    let mut pool = pool(32);
    let prompt = text(1, 256);
    run(&mut pool, A, &prompt);
    assert_eq!(pool.create(B, &prompt, 256).cached_tokens, 256);
    assert_eq!(pool.table(A).ids(), pool.table(B).ids());
    assert_eq!(
        (pool.usage().frames_live, pool.releasable_frames(A)),
        (16, 0)
    );
    pool.release(A);
    pool.release(B);
    assert_eq!((pool.usage().frames_cached, pool.available()), (16, 32));
    assert_eq!(pool.lookup(&prompt, 128), hit(128, 8));
    pool.create(C, &prompt, 128);
    assert_eq!((pool.usage().frames_cached, pool.available()), (8, 24));
    pool.check().expect("the pool is sound");
}

#[test]
fn what_is_not_a_full_block_is_freed_on_release() {
    let mut pool = pool(32);
    run(&mut pool, A, &text(1, 200));
    pool.release(A);
    let usage = pool.usage();
    assert_eq!((usage.frames_cached, usage.frames_free), (8, 24));
}

#[test]
fn the_tail_is_evicted_before_what_it_hangs_on() {
    let mut pool = pool(32);
    let prompt = text(1, 384);
    run(&mut pool, A, &prompt);
    pool.release(A);
    pool.create(B, &[], 0);
    for (len, left) in [(128, 384), (144, 256), (256, 256), (272, 128), (400, 0)] {
        pool.grow(B, len).expect("the cache makes room");
        assert_eq!(
            pool.lookup(&prompt, 384).tokens,
            left,
            "another sequence has {len}"
        );
        pool.check().expect("the pool is sound");
    }
}

#[test]
fn the_least_recently_used_prompt_goes_first() {
    let mut pool = pool(24);
    let prompts = [1, 2, 3].map(|seed| text(seed, 128));
    for prompt in &prompts {
        run(&mut pool, A, prompt);
        pool.release(A);
    }
    // The first is used again, by a sequence that then ends.
    assert_eq!(pool.create(A, &prompts[0], 128).cached_tokens, 128);
    pool.release(A);
    pool.create(B, &[], 0);
    pool.grow(B, 100).expect("the cache makes room");
    let found = prompts.map(|prompt| pool.lookup(&prompt, 128).tokens);
    assert_eq!(found, [128, 0, 128]);
}

#[test]
fn of_two_that_compute_the_same_the_first_is_shared_and_the_second_keeps_its_own() {
    let mut pool = pool(64);
    let prompt = text(1, 256);
    run_uncached(&mut pool, A, &prompt);
    run_uncached(&mut pool, B, &prompt);
    assert_eq!(
        (pool.usage().frames_live, pool.usage().blocks_published),
        (32, 2)
    );
    assert_eq!(pool.releasable_frames(B), 16);
    pool.create(C, &prompt, 256);
    assert_eq!(pool.table(C).ids(), pool.table(A).ids());
}

#[test]
fn when_the_shared_copy_goes_another_holders_takes_its_place() {
    let mut pool = pool(64);
    let prompt = text(1, 256);
    run_uncached(&mut pool, A, &prompt);
    run_uncached(&mut pool, B, &prompt);
    // What B computes next is published behind the entries of A's blocks.
    extend(&mut pool, B, &text(2, 128));
    pool.release(A);
    assert_eq!(
        (pool.usage().frames_live, pool.usage().frames_cached),
        (24, 0)
    );
    assert_eq!(pool.lookup(&prompt, 256), hit(256, 0));
    let longer = [prompt, text(2, 128)].concat();
    pool.release(B);
    assert_eq!(pool.usage().frames_cached, 24);
    assert_eq!(pool.lookup(&longer, 384), hit(384, 24));
    pool.check().expect("the pool is sound");
}

#[test]
fn a_copy_that_only_the_cache_kept_makes_way_for_one_that_is_held() {
    let mut pool = pool(64);
    let prompt = text(1, 128);
    run(&mut pool, A, &prompt);
    pool.release(A);
    run_uncached(&mut pool, B, &prompt);
    let usage = pool.usage();
    assert_eq!(
        (
            usage.frames_live,
            usage.frames_cached,
            usage.blocks_published
        ),
        (8, 0, 1)
    );
}

#[test]
fn without_the_cache_nothing_is_found_or_kept() {
    let mut off = config(32, 1);
    off.prefix_cache = false;
    let mut pool = BlockManager::new(off).expect("the shape is valid");
    let prompt = text(1, 256);
    run(&mut pool, A, &prompt);
    assert_eq!(pool.lookup(&prompt, 256).tokens, 0);
    pool.release(A);
    assert_eq!(pool.usage().frames_free, 32);
}

#[test]
fn a_cursor_follows_what_is_published_evicted_and_asked_for() {
    let mut pool = pool(32);
    let (prompt, mut cursor) = (text(1, 384), PrefixCursor::default());
    assert_eq!(
        pool.lookup_from(&mut cursor, &prompt, 383, MinBits::ANY)
            .tokens,
        0
    );
    run(&mut pool, A, &prompt[..256]);
    assert_eq!(
        pool.lookup_from(&mut cursor, &prompt, 383, MinBits::ANY),
        hit(256, 0)
    );
    pool.release(A);
    assert_eq!(
        pool.lookup_from(&mut cursor, &prompt, 383, MinBits::ANY),
        hit(256, 16)
    );
    assert_eq!(
        pool.lookup_from(&mut cursor, &prompt, 200, MinBits::ANY),
        hit(128, 8)
    );
    run(&mut pool, B, &text(2, 384));
    assert_eq!(
        pool.lookup_from(&mut cursor, &prompt, 383, MinBits::ANY),
        hit(128, 8)
    );
    pool.release(B);
    assert_eq!(
        pool.create_from(C, &mut cursor, &prompt, 383, SeqOptions::default())
            .cached_tokens,
        128
    );
    extend(&mut pool, C, &prompt[128..]);
    assert_eq!(
        pool.lookup_from(&mut cursor, &prompt, 384, MinBits::ANY),
        hit(384, 0)
    );
    cursor.clear();
    assert_eq!(
        pool.lookup_from(&mut cursor, &text(2, 384), 383, MinBits::ANY)
            .tokens,
        128
    );
}
