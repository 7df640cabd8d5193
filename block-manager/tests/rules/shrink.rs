use super::*;
use ebb_block_manager::{
    BlockId, PrefixCursor, Pressure, ShrinkJob, StepId, Terms,
    schedule::{Bound, PositionTable},
};

/// Blocks of 8 frames that can shrink to 4 and to 1.
fn shrinking(frames: u32) -> BlockManager {
    let mut config = config(frames, 1);
    config.positions = PositionTable::of_frames(&[8, 4, 1]);
    (config.protected, config.sink) = (Bound::NEVER, Bound::NEVER);
    BlockManager::new(config).expect("the shape is valid")
}

/// Issues a shrink that must be possible.
fn shrink(pool: &mut BlockManager, block: BlockId) -> ShrinkJob {
    let job = pool.shrink(block).expect("frames are held back for it");
    job.expect("more comes free")
}

/// The step that does what was issued comes and goes.
fn step(pool: &mut BlockManager, id: u64) {
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
        Block { block, position: 2 },
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
    config.positions = PositionTable::of_frames(&[8, 4, 1]);
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
fn formats(frames: u32) -> BlockManager {
    guarded(frames, 8, 8)
}

/// The same with the lowest bits of the first and of the last sealed block.
fn guarded(frames: u32, first: u8, last: u8) -> BlockManager {
    let mut config = config(frames, 1);
    config.positions = common::positions(8);
    (config.sink, config.protected) = (Bound(first), Bound(last));
    BlockManager::new(config).expect("the shape is valid")
}

/// Shrinks everything as far as it goes, and tells the lowest bits of each block of a sequence.
fn floors(pool: &mut BlockManager, seq: SeqId, first_step: u64) -> Vec<u8> {
    let all = Pressure {
        demand: u32::MAX,
        soon: u32::MAX,
        low: 0,
        high: 0,
        live_max: u32::MAX,
        bytes_max: u64::MAX,
        cold: true,
    };
    let mut jobs = Vec::new();
    for id in first_step.. {
        jobs.clear();
        pool.relieve(&all, &mut jobs);
        step(pool, id);
        if jobs.is_empty() {
            break;
        }
    }
    let table = pool.config().positions.clone();
    pool.table(seq)
        .iter()
        .map(|(position, _)| table.standing(position).min_bits)
        .collect()
}

/// Runs a sequence on terms of its own; what it reads is noted.
fn run_at(pool: &mut BlockManager, seq: SeqId, tokens: &[u32], bound: u8, class: i32) -> usize {
    let terms = Terms {
        bound: Bound(bound),
        class,
        is_private: false,
    };
    let cursor = &mut PrefixCursor::default();
    let created = pool.create_from(seq, cursor, tokens, tokens.len() - 1, terms);
    pool.grow(seq, tokens.len()).expect("there is room");
    pool.note_read(seq, (tokens.len() - created.cached_tokens) as u32);
    pool.commit(seq, &tokens[created.cached_tokens..]);
    created.cached_tokens
}

#[test]
fn no_block_goes_below_what_its_holders_insist_on() {
    for (bound, middle, edge) in [(0, 2, 8), (3, 4, 8), (8, 8, 8), (16, 16, 16)] {
        let mut pool = formats(200);
        run_at(&mut pool, A, &text(1, 650), bound, 0);
        let expected = [edge, middle, middle, middle, edge, 16];
        assert_eq!(floors(&mut pool, A, 1), expected, "bound {bound}");
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
    let found = |pool: &BlockManager, bound| {
        let cursor = &mut PrefixCursor::default();
        pool.lookup_from(cursor, &longer, 899, Bound(bound)).tokens
    };
    assert_eq!((found(&pool, 0), found(&pool, 2)), (896, 896));
    assert_eq!(
        (found(&pool, 4), found(&pool, 8), found(&pool, 16)),
        (128, 128, 0)
    );
    // Computed anew at 16 bit, it replaces the entries, also while they are held.
    assert_eq!(run_at(&mut pool, B, &longer, 16, 0), 0);
    assert_eq!((found(&pool, 16), found(&pool, 0)), (896, 896));
    pool.release(A);
    assert_eq!(found(&pool, 16), 896);
    pool.check().expect("the pool is sound");
}

#[test]
fn pressure_is_met_in_order() {
    let mut pool = formats(400);
    let cold = text(9, 400);
    run_at(&mut pool, A, &text(1, 520), 0, 0);
    run_at(&mut pool, B, &text(2, 520), 0, 5);
    run_at(&mut pool, C, &cold, 0, 0);
    pool.release(C);
    let owner = |pool: &BlockManager, block| {
        let at = |seq| pool.table(seq).ids().iter().position(|id| *id == block);
        (at(A), at(B))
    };
    let relieve = |pool: &mut BlockManager, low: u32| {
        let mut jobs = Vec::new();
        let pressure = Pressure {
            demand: 0,
            soon: 0,
            low,
            high: low,
            live_max: u32::MAX,
            bytes_max: u64::MAX,
            cold: true,
        };
        pool.relieve(&pressure, &mut jobs);
        let order: Vec<_> = jobs.iter().map(|job| owner(pool, job.block)).collect();
        order
    };
    // What cold blocks could give by being evicted they give by shrinking, if that is enough.
    let cold = pool.usage().frames_cached;
    let ready = pool.available() - cold;
    assert_eq!(relieve(&mut pool, ready + 1), [(None, None)]);
    // If not, live ones shrink, and cold ones are not rewritten before they make way: those of the lower priority first, within it the
    // unprotected ones, oldest first.
    let order = relieve(&mut pool, 400);
    let second = [1, 2, 0, 3].map(|at| (None, Some(at)));
    assert_eq!(order[..4], second);
    assert_eq!(order[4..], [1, 2, 0, 3].map(|at| (Some(at), None)));
}

/// Frames of cached blocks count as free. Where nothing else is, shrinks of live blocks are written to them.
#[test]
fn live_blocks_shrink_to_frames_of_cached_ones() {
    let mut pool = formats(200);
    let all = Pressure {
        demand: 0,
        soon: 0,
        low: 200,
        high: 200,
        live_max: u32::MAX,
        bytes_max: u64::MAX,
        cold: true,
    };
    run(&mut pool, B, &text(9, 1024));
    pool.release(B);
    let mut jobs = Vec::new();
    for id in 1..=4 {
        // There are no live ones yet.
        pool.relieve(&all, &mut jobs);
        step(&mut pool, id);
    }
    assert!(jobs.iter().all(|job| !job.live));
    run(&mut pool, A, &text(1, 128));
    while pool.usage().frames_free >= 8 {
        extend(&mut pool, A, &text(2, 128));
    }
    let before = pool.usage();
    assert!(before.frames_cached > 0);

    // All but what somebody takes soon.
    jobs.clear();
    let soon = 3;
    pool.relieve(&Pressure { soon, ..all }, &mut jobs);
    assert!(jobs.iter().all(|job| job.live));
    let written: usize = jobs.iter().map(|job| job.new.len()).sum();
    let most = before.frames_free + before.frames_cached - soon;
    assert!(written as u32 > before.frames_free, "{written} frames");
    assert!(written as u32 <= most, "{written} frames of {most}");
    step(&mut pool, 5);
}

/// Pools that are full but for cached blocks, some of which may be rewritten or touched by a step in flight.
#[test]
fn shrinks_take_the_frames_of_cached_blocks_whatever_is_asked_for() {
    let mut state = 1_u64;
    let mut below = |end: u32| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as u32 % end
    };
    let (mut evicted, mut live) = (0, 0);
    for round in 0..500 {
        let mut pool = formats(100 + below(100));
        let frames = pool.config().frames;
        let mut pressure = |low: u32| Pressure {
            demand: below(frames),
            soon: below(20),
            low,
            high: low + below(20),
            live_max: u32::MAX,
            bytes_max: 4096 * u64::from(1 + below(200)),
            cold: true,
        };
        let cached = [pressure(frames), pressure(0), pressure(10)];
        run(&mut pool, B, &text(round, 128 * (1 + round as usize % 6)));
        pool.release(B);
        let (mut jobs, mut id) = (Vec::new(), 0);
        for pressure in &cached[..round as usize % 4 % 3 + 1] {
            pool.relieve(pressure, &mut jobs);
            id += 1;
            pool.begin_step(StepId(id));
            if round % 3 > 0 {
                pool.retire_step(StepId(id));
            }
        }
        run(&mut pool, A, &text(1000, 128));
        while pool.frames_needed(A, pool.committed(A) + 128)
            <= pool.available().min(pool.usage().frames_free)
        {
            extend(&mut pool, A, &text(1001, 128));
        }
        let before = pool.usage();
        jobs.clear();
        pool.relieve(&pressure(frames / 2), &mut jobs);
        let after = pool.usage();
        let written: usize = jobs.iter().map(|job| job.new.len()).sum();
        assert!(written as u32 <= before.frames_free + before.frames_cached);
        pool.check()
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        for step in 1..=id {
            if round % 3 == 0 {
                pool.retire_step(StepId(step));
            }
        }
        step(&mut pool, id + 1);
        pool.check()
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        evicted += before.blocks_cached - after.blocks_cached;
        live += jobs.iter().filter(|job| job.live).count();
    }
    assert!(
        evicted > 100 && live > 500,
        "{evicted} evicted, {live} shrunk"
    );
}

#[test]
fn a_step_rewrites_no_more_than_it_may() {
    let mut pool = formats(400);
    run(&mut pool, A, &text(1, 1000));
    let mut jobs = Vec::new();
    let some = Pressure {
        demand: 0,
        soon: 0,
        low: 400,
        high: 400,
        live_max: u32::MAX,
        bytes_max: 3 * 8 * 4096,
        cold: true,
    };
    pool.relieve(&some, &mut jobs);
    pool.relieve(&some, &mut jobs);
    assert_eq!(jobs.len(), 3);
    step(&mut pool, 1);
    // One block at least, however little is allowed.
    jobs.clear();
    pool.relieve(
        &Pressure {
            bytes_max: 1,
            cold: true,
            ..some
        },
        &mut jobs,
    );
    assert_eq!(jobs.len(), 1);
}

/// A load that hovers at the watermark must not keep the planner busy.
#[test]
fn nothing_oscillates_at_the_watermark() {
    let mut pool = formats(140);
    run(&mut pool, A, &text(1, 1920));
    let (mut bursts, mut was_busy, mut jobs) = (0, false, Vec::new());
    let marks = Pressure {
        demand: 0,
        soon: 0,
        low: 13,
        high: 26,
        live_max: u32::MAX,
        bytes_max: u64::MAX,
        cold: true,
    };
    for round in 1..=400 {
        // Demand goes up and down by two sub-blocks around what is left.
        let seq = SeqId(100 + round);
        pool.create(seq, &[], 0);
        pool.grow(seq, if round % 2 == 0 { 16 } else { 48 })
            .expect("there is room");
        jobs.clear();
        pool.relieve(&marks, &mut jobs);
        bursts += u64::from(!jobs.is_empty() && !was_busy);
        was_busy = !jobs.is_empty();
        step(&mut pool, round);
        pool.release(seq);
    }
    assert_eq!(bursts, 1, "one burst to the high watermark, then peace");
}

/// There is room, but every step reads what sequences hold.
#[test]
fn sequences_that_hold_more_than_they_may_shrink_beside_free_frames() {
    let mut pool = formats(400);
    run(&mut pool, B, &text(9, 512));
    pool.release(B);
    run(&mut pool, A, &text(1, 1280));
    let (before, mut jobs) = (pool.usage(), Vec::new());
    let at_most = |live_max| Pressure {
        demand: 0,
        soon: 0,
        low: 10,
        high: 30,
        live_max,
        bytes_max: u64::MAX,
        cold: true,
    };
    pool.relieve(&at_most(before.frames_live), &mut jobs);
    assert!(jobs.is_empty());
    // Until they hold less by what the watermarks are apart.
    let most = before.frames_live * 3 / 4;
    pool.relieve(&at_most(most), &mut jobs);
    assert!(jobs.iter().all(|job| job.live));
    step(&mut pool, 1);
    let after = pool.usage();
    assert!(after.frames_live <= most - 20, "{after:?}");
    assert!(after.frames_live > most / 2, "{after:?}");
    assert_eq!(
        after.frames_cached, before.frames_cached,
        "nobody needs their frames"
    );
    jobs.clear();
    pool.relieve(&at_most(most), &mut jobs);
    assert!(jobs.is_empty(), "over is over");
    // As far as they go, where less is asked than their floor.
    for id in 2..20 {
        pool.relieve(&at_most(0), &mut jobs);
        step(&mut pool, id);
    }
    assert!(!pool.can_shrink_live());
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
    for (bound, [first, last]) in [0, 4, 8, 16]
        .into_iter()
        .flat_map(|bound| [[8, 8], [16, 0], [0, 0]].map(|guards| (bound, guards)))
    {
        let mut most = 0;
        for len in (16..=1100).step_by(16) {
            let mut pool = guarded(400, first, last);
            run_at(&mut pool, A, &text(1, len), bound, 0);
            floors(&mut pool, A, 1);
            most = most.max(pool.usage().frames_live);
            let floor = pool.config().floor_frames(len as u64, Bound(bound));
            // The last block was still open before its last token.
            let before = u64::from(most);
            assert!(
                floor >= before,
                "{len} tokens at {bound}: {floor} < {before}"
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
    let cold: Vec<_> = pool.cold_blocks().collect();
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
    let tail = pool.cold_blocks().next().expect("cached");
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
