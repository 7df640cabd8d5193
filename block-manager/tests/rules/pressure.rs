//! Which blocks shrink when memory is short or sequences hold more than they may.

use super::shrink::{formats, run_at, step};
use super::*;
use ebb_block_manager::{Pressure, StepId};

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
            decodes: 0,
            low,
            high: low,
            live_max: u32::MAX,
            bytes_max: u64::MAX,
            shrinks_cached: true,
        };
        pool.shrink_for(&pressure, &mut jobs);
        let order: Vec<_> = jobs.iter().map(|job| owner(pool, job.block)).collect();
        order
    };
    // If evicting cached blocks would be enough, they shrink instead.
    let cold = pool.usage().frames_cached;
    let ready = pool.available() - cold;
    assert_eq!(relieve(&mut pool, ready + 1), [(None, None)]);
    // If not, live ones shrink, and cached ones are evicted without being rewritten. Lower priority
    // goes first; of these, unprotected before protected, oldest first.
    let order = relieve(&mut pool, 400);
    let second = [1, 2, 0, 3].map(|at| (None, Some(at)));
    assert_eq!(order[..4], second);
    assert_eq!(order[4..], [1, 2, 0, 3].map(|at| (Some(at), None)));
}

/// Frames of cached blocks count as free. Where nothing else is, shrinks of live blocks are written
/// to them.
#[test]
fn live_blocks_shrink_to_frames_of_cached_ones() {
    let mut pool = formats(200);
    let all = Pressure {
        demand: 0,
        decodes: 0,
        low: 200,
        high: 200,
        live_max: u32::MAX,
        bytes_max: u64::MAX,
        shrinks_cached: true,
    };
    run(&mut pool, B, &text(9, 1024));
    pool.release(B);
    let mut jobs = Vec::new();
    for id in 1..=4 {
        // There are no live ones yet.
        pool.shrink_for(&all, &mut jobs);
        step(&mut pool, id);
    }
    assert!(jobs.iter().all(|job| !job.live));
    run(&mut pool, A, &text(1, 128));
    while pool.usage().frames_free >= 8 {
        extend(&mut pool, A, &text(2, 128));
    }
    let before = pool.usage();
    assert!(before.frames_cached > 0);

    // All but the frames that a sequence takes soon.
    jobs.clear();
    let soon = 3;
    pool.shrink_for(
        &Pressure {
            decodes: soon,
            ..all
        },
        &mut jobs,
    );
    assert!(jobs.iter().all(|job| job.live));
    let written: usize = jobs.iter().map(|job| job.new.len()).sum();
    let most = before.frames_free + before.frames_cached - soon;
    assert!(written as u32 > before.frames_free, "{written} frames");
    assert!(written as u32 <= most, "{written} frames of {most}");
    step(&mut pool, 5);
}

/// Pools that are full but for cached blocks, some of which may be rewritten or touched by a step
/// in flight.
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
            decodes: below(20),
            low,
            high: low + below(20),
            live_max: u32::MAX,
            bytes_max: 4096 * u64::from(1 + below(200)),
            shrinks_cached: true,
        };
        let cached = [pressure(frames), pressure(0), pressure(10)];
        run(&mut pool, B, &text(round, 128 * (1 + round as usize % 6)));
        pool.release(B);
        let (mut jobs, mut id) = (Vec::new(), 0);
        for pressure in &cached[..round as usize % 4 % 3 + 1] {
            pool.shrink_for(pressure, &mut jobs);
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
        pool.shrink_for(&pressure(frames / 2), &mut jobs);
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
        decodes: 0,
        low: 400,
        high: 400,
        live_max: u32::MAX,
        bytes_max: 3 * 8 * 4096,
        shrinks_cached: true,
    };
    pool.shrink_for(&some, &mut jobs);
    pool.shrink_for(&some, &mut jobs);
    assert_eq!(jobs.len(), 3);
    step(&mut pool, 1);
    // At least one block, however few bytes are allowed.
    jobs.clear();
    pool.shrink_for(
        &Pressure {
            bytes_max: 1,
            shrinks_cached: true,
            ..some
        },
        &mut jobs,
    );
    assert_eq!(jobs.len(), 1);
}

/// A load that hovers at the watermark must not shrink blocks in every step.
#[test]
fn nothing_oscillates_at_the_watermark() {
    let mut pool = formats(140);
    run(&mut pool, A, &text(1, 1920));
    let (mut bursts, mut was_busy, mut jobs) = (0, false, Vec::new());
    let marks = Pressure {
        demand: 0,
        decodes: 0,
        low: 13,
        high: 26,
        live_max: u32::MAX,
        bytes_max: u64::MAX,
        shrinks_cached: true,
    };
    for round in 1..=400 {
        // Demand goes up and down by two sub-blocks around the frames that are left.
        let seq = SeqId(100 + round);
        pool.create(seq, &[], 0);
        pool.grow(seq, if round % 2 == 0 { 16 } else { 48 })
            .expect("there is room");
        jobs.clear();
        pool.shrink_for(&marks, &mut jobs);
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
        decodes: 0,
        low: 10,
        high: 30,
        live_max,
        bytes_max: u64::MAX,
        shrinks_cached: true,
    };
    pool.shrink_for(&at_most(before.frames_live), &mut jobs);
    assert!(jobs.is_empty());
    // Until they hold less by the distance between the watermarks.
    let most = before.frames_live * 3 / 4;
    pool.shrink_for(&at_most(most), &mut jobs);
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
    pool.shrink_for(&at_most(most), &mut jobs);
    assert!(jobs.is_empty(), "over is over");
    // To their floor, if even less is allowed.
    for id in 2..20 {
        pool.shrink_for(&at_most(0), &mut jobs);
        step(&mut pool, id);
    }
    assert!(!pool.can_shrink_live());
}
