//! The simulation over many seeds. `EBB_SIM_SEED=17` runs one seed with its trace,
//! `EBB_SIM_SEEDS=100000` runs more of them.

use ebb_block_manager::PoolConfig;
use ebb_block_manager::precision::{
    BlockSize, LevelChange, LevelTable, MinBits, Page, PageLevel, PageSide, ShrinkOrder,
};
use ebb_scheduler::{Admission, Config, Mode};
use ebb_tests::sim::{self, World, rng::Rng, settings::Settings};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")),
    )
}

#[test]
fn every_request_is_served_correctly() {
    if let Some(seed) = number("EBB_SIM_SEED") {
        if let Err(failure) = sim::run(seed, true) {
            panic!("{failure}");
        }
        return;
    }
    let seeds = number("EBB_SIM_SEEDS").unwrap_or(10_000);
    let totals = sim::run_many(0..seeds, false).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{totals:#?}");
    // Everything that can happen does happen, and often.
    assert!(totals.preemptions > seeds / 10, "{totals:?}");
    assert!(totals.yields > seeds / 20, "{totals:?}");
    assert!(totals.prefix_hit_tokens > 10 * seeds, "{totals:?}");
    assert!(totals.plans_with_copies > seeds / 20, "{totals:?}");
    assert!(totals.steps_failed > seeds, "{totals:?}");
    assert!(totals.requests_rejected > seeds / 10, "{totals:?}");
    assert!(
        totals.ended.iter().all(|ended| *ended > seeds / 20),
        "{totals:?}"
    );
    assert!(totals.shrinks_live > seeds, "{totals:?}");
    assert!(totals.shrinks_cached > seeds, "{totals:?}");
    assert!(totals.shrinks_failed > seeds / 10, "{totals:?}");
    assert!(totals.degraded > seeds, "{totals:?}");
    assert!(totals.stalls > seeds, "{totals:?}");
    assert!(totals.taken_for_free_slots > seeds / 10, "{totals:?}");
    assert!(totals.slots_without_memory > seeds / 100, "{totals:?}");
    assert!(totals.hidden > seeds, "{totals:?}");
    assert!(totals.trimmed > seeds, "{totals:?}");
    assert!(totals.states_kept > seeds, "{totals:?}");
    assert!(totals.states_found > seeds / 10, "{totals:?}");
    assert!(totals.shrinks_trimmed > seeds / 10, "{totals:?}");
}

/// Seeds beyond those of every run that found something once: a copy that was lost with a failed
/// step, though its slice was void already; a plan that counted for a sequence that had yielded;
/// one that did not count for a sequence that waited for its blocks to shrink.
#[test]
fn what_was_found_stays_found() {
    for seed in [68_306, 106_772, 946_803] {
        sim::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let digest = |seed| sim::run(seed, false).map(|report| report.digest);
    let mut all = Vec::new();
    for seed in 20_000..20_100 {
        let first = digest(seed).unwrap_or_else(|failure| panic!("{failure}"));
        let second = digest(seed).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed}");
        all.push(first);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 100, "different seeds give different traces");
}

/// One layer: V and then K come down from 16 bit to 8, 4 and 2.
fn ladder(block_frames: u32) -> LevelTable {
    let mut changes = Vec::new();
    for (tag, bits) in [(0, 8), (1, 4), (2, 2)] {
        for side in [PageSide::V, PageSide::K] {
            let page = Page { layer: 0, side };
            let to = PageLevel { tag, bits };
            changes.push(LevelChange { page, to });
        }
    }
    let order = ShrinkOrder::new(1, changes).expect("pages only shrink");
    LevelTable::new(&order, |taken| {
        let mut bits = [16, 16];
        for change in taken {
            bits[usize::from(change.page.side == PageSide::V)] = u32::from(change.to.bits);
        }
        let frames = (block_frames * (bits[0] + bits[1])).div_ceil(32);
        BlockSize {
            frames,
            bytes: u64::from(frames) * 4096,
        }
    })
}

/// Requests whose choices share a prompt and fill their next block together, in pools of every size
/// from one that is too small to one that holds them all at 16 bit. The simulation's own rules say
/// what must hold: among them, that nothing is preempted where blocks shrink and promises are kept,
/// and that no plan is one that a backend would refuse.
#[test]
fn many_choices_are_served_from_pools_of_any_size() {
    let (mut worlds, mut shrinks, mut copies, mut together) = (0, 0, 0, 0);
    for mode in [Mode::Progressive, Mode::Static, Mode::PreemptOnly] {
        for choices in [2, 3, 10, 16_u64] {
            for sub_blocks in (8..=8 * choices as u32 * 3).step_by(1 + choices as usize / 3) {
                for (flights, admission, overcommit_percent) in [
                    (1, Admission::Degrade, 100),
                    (2, Admission::Degrade, 100),
                    (2, Admission::Queue, 100),
                    (1, Admission::Degrade, 1000),
                    (2, Admission::Degrade, 1000),
                ] {
                    let per_sub_block = 1 + sub_blocks % 3;
                    let levels = ladder(8 * per_sub_block);
                    let pool = PoolConfig {
                        frames: sub_blocks * per_sub_block + levels.largest_target(),
                        levels,
                        protected: MinBits(8),
                        sink: MinBits(8),
                        ..PoolConfig::whole(1, 4096, per_sub_block)
                    };
                    let config = Config {
                        max_running: 16,
                        max_in_flight: flights,
                        mode,
                        admission,
                        overcommit_percent,
                        ..Config::default()
                    };
                    let settings = Settings::cramped(config, pool, choices);
                    let case = format!("{choices} choices, {sub_blocks} sub-blocks: {settings:#?}");
                    let seed = u64::from(sub_blocks) << 8 | choices;
                    let mut world = World::with(settings, Rng::new(seed), false).expect("a world");
                    let report = sim::run_world(&mut world);
                    let report = report.unwrap_or_else(|what| panic!("{what}\n{case}"));
                    worlds += 1;
                    shrinks += report.stats.shrinks_live;
                    copies += report.copies;
                    together += report.together;
                }
            }
        }
    }
    assert!(
        shrinks > worlds && copies > worlds,
        "{shrinks} shrinks, {copies} copies in {worlds}"
    );
    assert!(together > 0, "no block shrank in the step that copied it");
}
