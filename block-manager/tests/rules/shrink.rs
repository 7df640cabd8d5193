use super::*;
use ebb_block_manager::{
    BlockId, PrefixCursor, Pressure, SeqOptions, ShrinkJob, StepId,
    precision::{LevelTable, MinBits},
};

/// Blocks of 8 frames that can shrink to 4 and to 1.
fn shrinking(frames: u32) -> BlockManager {
    let mut config = config(frames, 1);
    config.levels = LevelTable::of_frames(&[8, 4, 1]);
    (config.protected, config.sink) = (MinBits::SIXTEEN, MinBits::SIXTEEN);
    BlockManager::new(config).expect("the shape is valid")
}

/// Issues a shrink that must be possible.
fn shrink(pool: &mut BlockManager, block: BlockId) -> ShrinkJob {
    let job = pool.shrink(block).expect("frames are held back for it");
    job.expect("more comes free")
}

/// The step that does what was issued comes and goes.
pub(super) fn step(pool: &mut BlockManager, id: u64) {
    pool.begin_step(StepId(id));
    pool.retire_step(StepId(id));
    pool.check().expect("the pool is sound");
}

#[test]
fn a_full_pool_can_always_take_one_more_shrink() {
    let mut pool = shrinking(36);
    run(&mut pool, A, &text(1, 512));
    assert_eq!((pool.available(), pool.usage().frames_free), (0, 4));
    assert_eq!(
        pool.grow(A, 513)
            .expect_err("the last four are held back")
            .missing,
        1
    );
    for id in 1..=2 {
        let victim = pool
            .unprotected_blocks(A)
            .nth(id as usize - 1)
            .expect("a middle block");
        let job = shrink(&mut pool, victim.block);
        assert_eq!(
            (job.from, job.to, job.old.len(), job.new.len()),
            (0, 1, 8, 4)
        );
        pool.begin_step(StepId(id));
        assert_eq!(pool.table(A).get(id as usize), Some((0, &job.old[..])));
        pool.retire_step(StepId(id));
        assert_eq!(pool.table(A).get(id as usize), Some((1, &job.new[..])));
        assert_eq!(pool.available(), 4 * id as u32);
        pool.check().expect("the pool is sound");
    }
}

#[test]
fn a_second_shrink_in_one_plan_waits_for_the_frames_of_the_first() {
    let mut pool = shrinking(36);
    run(&mut pool, A, &text(1, 512));
    let victims: Vec<_> = pool.unprotected_blocks(A).map(|live| live.block).collect();
    shrink(&mut pool, victims[0]);
    assert_eq!(pool.shrink(victims[0]), Ok(None), "one at a time");
    assert_eq!(pool.shrink(victims[1]).expect_err("no frames").missing, 4);
}

#[test]
fn every_holder_reads_the_shrunk_block_through_one_change() {
    use ebb_block_manager::TableDelta::{Block, Frame};
    let mut pool = shrinking(64);
    run(&mut pool, A, &text(1, 512));
    pool.fork(A, B);
    let mut deltas = Vec::new();
    let block = pool
        .unprotected_blocks(B)
        .next()
        .expect("a middle block")
        .block;
    shrink(&mut pool, block);
    step(&mut pool, 1);
    pool.drain_deltas(&mut deltas);
    deltas.clear();
    let job = shrink(&mut pool, block);
    step(&mut pool, 2);
    pool.drain_deltas(&mut deltas);
    let expected = [
        Block { block, level: 2 },
        Frame {
            block,
            index: 0,
            frame: job.new[0],
        },
    ];
    assert_eq!(deltas, expected);
    for seq in [A, B] {
        assert_eq!(pool.table(seq).get(1), Some((2, &job.new[..])));
    }
}

#[test]
fn a_reader_in_flight_keeps_the_old_frames() {
    let mut pool = shrinking(64);
    run(&mut pool, A, &text(1, 512));
    let block = pool.table(A).ids()[1];
    shrink(&mut pool, block);
    pool.begin_step(StepId(1));
    pool.begin_step(StepId(2));
    pool.retire_step(StepId(1));
    let usage = pool.usage();
    assert_eq!((usage.frames_retiring, usage.frames_live), (8, 28));
    pool.retire_step(StepId(2));
    assert_eq!(pool.usage().frames_retiring, 0);
}

#[test]
fn a_failed_shrink_leaves_the_block_where_it_is() {
    let mut pool = shrinking(64);
    run(&mut pool, A, &text(1, 512));
    let blocks = pool.table(A).ids().to_vec();
    let before: Vec<_> = pool.table(A).iter().map(|(p, f)| (p, f.to_vec())).collect();
    let usage = pool.usage();
    for block in &blocks[1..3] {
        shrink(&mut pool, *block);
    }
    pool.begin_step(StepId(1));
    pool.shrink_failed(StepId(1), blocks[1]);
    pool.retire_step(StepId(1));
    assert_eq!(pool.table(A).get(1), Some((0, &before[1].1[..])));
    assert_eq!(pool.table(A).get(2).expect("held").0, 1);
    assert_eq!(pool.usage().frames_free, usage.frames_free + 4);
    assert_eq!(pool.shrink(blocks[1]), Ok(None), "it would fail again");
    // A step that did not run says nothing about the block.
    shrink(&mut pool, blocks[2]);
    pool.begin_step(StepId(2));
    pool.shrinks_failed(StepId(2));
    pool.retire_step(StepId(2));
    assert_eq!(pool.table(A).get(2).expect("held").0, 1);
    assert!(pool.shrink(blocks[2]).expect("there is room").is_some());
}

#[test]
fn a_block_that_ends_while_it_shrinks_takes_both_its_places_with_it() {
    let mut config = config(64, 1);
    config.levels = LevelTable::of_frames(&[8, 4, 1]);
    config.prefix_cache = false;
    let mut pool = BlockManager::new(config).expect("the shape is valid");
    run(&mut pool, A, &text(1, 512));
    let block = pool.table(A).ids()[1];
    shrink(&mut pool, block);
    pool.begin_step(StepId(1));
    pool.release(A);
    pool.check().expect("the pool is sound");
    pool.retire_step(StepId(1));
    assert_eq!(pool.usage().frames_free, 64);
}

#[test]
fn first_last_and_open_blocks_are_protected_for_each_holder() {
    let mut pool = shrinking(128);
    let prompt = text(1, 128 * 5);
    run(&mut pool, A, &prompt);
    extend(&mut pool, A, &[7]);
    let ids = pool.table(A).ids().to_vec();
    let unprotected = |pool: &BlockManager, seq| {
        let blocks = pool.unprotected_blocks(seq);
        blocks
            .map(|b| ids.iter().position(|id| *id == b.block).expect("A's"))
            .collect::<Vec<_>>()
    };
    assert_eq!(unprotected(&pool, A), [1, 2, 3]);
    // The third block is the last one of B, which shares three.
    pool.create(B, &prompt, 384);
    assert_eq!(
        (unprotected(&pool, A), unprotected(&pool, B)),
        (vec![1, 3], vec![1])
    );
    extend(&mut pool, B, &text(5, 128));
    assert_eq!(unprotected(&pool, A), [1, 2, 3]);
    pool.release(B);
    assert!(pool.is_protected(ids[0]) && pool.is_protected(ids[4]) && pool.is_protected(ids[5]));
    assert!(!pool.is_protected(ids[2]));
}

/// Blocks of 8 frames of a model with formats of 16, 8, 4 and 2 bits.
pub(super) fn formats(frames: u32) -> BlockManager {
    guarded(frames, 8, 8)
}

/// The same with the lowest bits of the first and of the last sealed block.
fn guarded(frames: u32, first: u8, last: u8) -> BlockManager {
    let mut config = config(frames, 1);
    config.levels = common::levels(8);
    (config.sink, config.protected) = (MinBits(first), MinBits(last));
    BlockManager::new(config).expect("the shape is valid")
}

/// Shrinks everything as far as it goes, and tells the lowest bits of each block of a sequence.
fn floors(pool: &mut BlockManager, seq: SeqId, first_step: u64) -> Vec<u8> {
    let all = Pressure {
        demand: u32::MAX,
        decodes: u32::MAX,
        low: 0,
        high: 0,
        live_max: u32::MAX,
        bytes_max: u64::MAX,
        shrinks_cached: true,
    };
    let mut jobs = Vec::new();
    for id in first_step.. {
        jobs.clear();
        pool.shrink_for(&all, &mut jobs);
        step(pool, id);
        if jobs.is_empty() {
            break;
        }
    }
    let table = pool.config().levels.clone();
    pool.table(seq)
        .iter()
        .map(|(level, _)| table.level(level).lowest_bits)
        .collect()
}

/// Runs a sequence on options of its own; what it reads is noted.
pub(super) fn run_at(
    pool: &mut BlockManager,
    seq: SeqId,
    tokens: &[u32],
    min_bits: u8,
    priority: i32,
) -> usize {
    let options = SeqOptions {
        min_bits: MinBits(min_bits),
        priority,
        is_private: false,
    };
    let cursor = &mut PrefixCursor::default();
    let created = pool.create_from(seq, cursor, tokens, tokens.len() - 1, options);
    pool.grow(seq, tokens.len()).expect("there is room");
    pool.note_read(seq, (tokens.len() - created.cached_tokens) as u32);
    pool.commit(seq, &tokens[created.cached_tokens..]);
    created.cached_tokens
}

#[test]
fn no_block_goes_below_what_its_holders_insist_on() {
    for (min_bits, middle, edge) in [(0, 2, 8), (3, 4, 8), (8, 8, 8), (16, 16, 16)] {
        let mut pool = formats(200);
        run_at(&mut pool, A, &text(1, 650), min_bits, 0);
        let expected = [edge, middle, middle, middle, edge, 16];
        assert_eq!(floors(&mut pool, A, 1), expected, "min_bits {min_bits}");
    }
}

#[test]
fn a_shared_block_keeps_the_highest_bound_of_its_holders() {
    let mut pool = formats(200);
    let prompt = text(1, 650);
    run_at(&mut pool, A, &prompt, 0, 0);
    assert_eq!(run_at(&mut pool, B, &prompt[..400], 4, 0), 384);
    // B's last sealed block is A's third.
    assert_eq!(floors(&mut pool, A, 1), [8, 4, 8, 2, 8, 16]);
    pool.release(B);
    assert_eq!(floors(&mut pool, A, 1000), [8, 2, 2, 2, 8, 16]);
}

#[test]
fn a_hit_satisfies_the_request_in_width_and_in_provenance() {
    let mut pool = formats(400);
    let prompt = text(1, 650);
    run_at(&mut pool, A, &prompt, 0, 0);
    floors(&mut pool, A, 1);
    // More is computed from what has shrunk to 2 bit, and not shrunk itself.
    let longer: Vec<u32> = text(1, 900);
    pool.grow(A, 900).expect("there is room");
    pool.note_read(A, 250);
    pool.commit(A, &longer[650..]);
    assert_eq!(pool.bits(A).lowest, 2);
    assert!((200..1600).contains(&pool.bits(A).mean_centibits));
    let found = |pool: &BlockManager, min_bits| {
        let cursor = &mut PrefixCursor::default();
        pool.lookup_from(cursor, &longer, 899, MinBits(min_bits))
            .tokens
    };
    assert_eq!((found(&pool, 0), found(&pool, 2)), (896, 896));
    assert_eq!(
        (found(&pool, 4), found(&pool, 8), found(&pool, 16)),
        (128, 128, 0)
    );
    // Computed again at 16 bit, it replaces the entries, also while they are held.
    assert_eq!(run_at(&mut pool, B, &longer, 16, 0), 0);
    assert_eq!((found(&pool, 16), found(&pool, 0)), (896, 896));
    pool.release(A);
    assert_eq!(found(&pool, 16), 896);
    pool.check().expect("the pool is sound");
}

#[test]
fn the_first_and_the_last_block_are_guarded_apart() {
    let ends = |first, last| {
        let mut pool = guarded(400, first, last);
        run(&mut pool, A, &text(1, 640));
        floors(&mut pool, A, 1)
    };
    let low = ends(0, 0)[2];
    assert!(low < 8);
    assert_eq!(ends(0, 0), [low; 5]);
    assert_eq!(ends(8, 8), [8, low, low, low, 8]);
    assert_eq!(ends(16, 8), [16, low, low, low, 8]);
    assert_eq!(ends(16, 0), [16, low, low, low, low]);
}

#[test]
fn the_floor_is_what_full_pressure_comes_to() {
    for (min_bits, [first, last]) in [0, 4, 8, 16]
        .into_iter()
        .flat_map(|min_bits| [[8, 8], [16, 0], [0, 0]].map(|guards| (min_bits, guards)))
    {
        let mut most = 0;
        for len in (16..=1100).step_by(16) {
            let mut pool = guarded(400, first, last);
            run_at(&mut pool, A, &text(1, len), min_bits, 0);
            floors(&mut pool, A, 1);
            most = most.max(pool.usage().frames_live);
            let floor = pool.config().floor_frames(len as u64, MinBits(min_bits), 0);
            // The last block was still open before its last token.
            let before = u64::from(most);
            assert!(
                floor >= before,
                "{len} tokens at {min_bits}: {floor} < {before}"
            );
            let blocks = len as u64 / 128;
            assert!(
                floor <= before + 8,
                "{len} tokens, {blocks} blocks: {floor}"
            );
        }
    }
}

#[test]
fn cold_blocks_shrink_in_place_in_the_cache() {
    let mut pool = shrinking(64);
    let prompt = text(1, 384);
    run(&mut pool, A, &prompt);
    pool.release(A);
    let cold: Vec<_> = pool.cached_blocks().collect();
    assert_eq!(
        cold.iter().map(|cold| cold.depth).collect::<Vec<_>>(),
        [2, 1, 0]
    );
    assert_eq!(pool.shrink(cold[2].block), Ok(None), "a sink is protected");
    shrink(&mut pool, cold[1].block);
    // Until the step retires, evicting the block would free nothing.
    assert_eq!(pool.available(), 64 - 4 - 8);
    step(&mut pool, 1);
    assert_eq!(
        (pool.lookup(&prompt, 384).tokens, pool.usage().frames_cached),
        (384, 20)
    );
    assert_eq!(
        (pool.available(), pool.lookup(&prompt, 384).frames_revived),
        (60, 20)
    );
    pool.create(B, &prompt, 384);
    assert_eq!(
        pool.table(B)
            .iter()
            .map(|(p, f)| (p, f.len()))
            .collect::<Vec<_>>(),
        [(0, 8), (1, 4), (0, 8)]
    );
    pool.check().expect("the pool is sound");
}

#[test]
fn a_cached_parent_goes_with_a_child_that_a_step_still_touches() {
    let mut pool = shrinking(28);
    let prompt = text(1, 256);
    run(&mut pool, A, &prompt);
    pool.release(A);
    let tail = pool.cached_blocks().next().expect("cached");
    shrink(&mut pool, tail.block);
    pool.begin_step(StepId(1));
    // Free are 8; the child's frames are busy, so the parent's 8 must go.
    pool.create(B, &[], 0);
    pool.grow(B, 144).expect("the parent can be evicted");
    assert_eq!(
        (pool.lookup(&prompt, 256).tokens, pool.usage().frames_cached),
        (0, 0)
    );
    pool.check().expect("the pool is sound");
    pool.retire_step(StepId(1));
    pool.check().expect("the pool is sound");
}

#[test]
fn an_open_block_does_not_shrink() {
    let mut pool = shrinking(64);
    run(&mut pool, A, &text(1, 100));
    let open = pool.table(A).ids()[0];
    assert_eq!(pool.shrink(open), Ok(None));
}

// The recent context of a sequence, as its holder moves it on; with another holder in between.
#[test]
fn recent_blocks_stay_at_16_bit_until_they_are_no_longer_recent() {
    let mut config = config(400, 1);
    config.levels = LevelTable::of_frames(&[8, 4, 1]);
    (config.protected, config.sink) = (MinBits::ANY, MinBits::ANY);
    let mut pool = BlockManager::new(config).expect("the shape is valid");
    let prompt = text(1, 640);
    run(&mut pool, A, &prompt);
    let mut id = 0;
    let mut at_floor = |pool: &mut BlockManager, seq| {
        let mut jobs = Vec::new();
        while !pool.shrink_to_floor(seq, &mut jobs) {
            id += 1;
            step(pool, id);
        }
        pool.table(seq)
            .iter()
            .map(|(level, _)| level)
            .collect::<Vec<_>>()
    };
    pool.keep_recent(A, 2);
    assert_eq!(at_floor(&mut pool, A), [2, 2, 0, 0, 0]);
    pool.check().expect("the pool is sound");
    // Another one shares blocks and keeps none of them, but may not take them from the first.
    pool.create(B, &prompt, 640);
    pool.keep_recent(B, 5);
    assert_eq!(at_floor(&mut pool, B), [2, 2, 0, 0, 0]);
    pool.keep_recent(A, 4);
    assert_eq!(at_floor(&mut pool, A), [2, 2, 2, 2, 0]);
    // What is sealed later is recent, too, until it is said otherwise.
    let more = text(2, 256);
    extend(&mut pool, A, &more);
    assert_eq!(at_floor(&mut pool, A), [2, 2, 2, 2, 0, 0, 0]);
    let held = u64::from(pool.usage().frames_live);
    assert!(pool.config().floor_frames(896, MinBits::ANY, 3) >= held);
    pool.release(A);
    pool.check().expect("the pool is sound");
    assert_eq!(at_floor(&mut pool, B), [2; 5]);
    pool.keep_recent(B, usize::MAX);
    pool.release(B);
    pool.check().expect("the pool is sound");
}
