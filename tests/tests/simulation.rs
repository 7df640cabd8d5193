//! The simulation over many seeds. `EBB_SIM_SEED=17` runs one seed with its trace,
//! `EBB_SIM_SEEDS=100000` runs more of them.

use ebb_tests::sim;

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
