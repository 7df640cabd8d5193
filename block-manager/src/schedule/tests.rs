//! Levels and shrink orders of a small model.

use super::*;

const EIGHT: Rung = Rung { tag: 1, bits: 8 };
const FOUR: Rung = Rung { tag: 2, bits: 4 };
const KITTY: Rung = Rung { tag: 3, bits: 2 };
const TWO: Rung = Rung { tag: 4, bits: 2 };

fn step(layer: u16, side: PageSide, to: Rung) -> Step {
    Step {
        page: Page { layer, side },
        to,
    }
}

/// Two layers; V goes to 2 bit before K leaves 8.
fn schedule() -> Schedule {
    use PageSide::{K, V};
    Schedule::new(
        2,
        vec![
            step(0, V, EIGHT),
            step(1, V, EIGHT),
            step(0, K, EIGHT),
            step(1, K, EIGHT),
            step(0, V, FOUR),
            step(0, V, TWO),
            step(1, V, FOUR),
            step(1, K, FOUR),
            step(1, V, TWO),
            step(0, K, FOUR),
            step(1, K, KITTY),
            step(1, K, TWO),
        ],
    )
    .unwrap()
}

/// 100 bytes a bit and page, 64 bytes a frame.
fn cost(steps: &[Step]) -> Cost {
    let mut bits = std::collections::BTreeMap::new();
    for s in steps {
        bits.insert(s.page, u64::from(s.to.bits) + u64::from(s.to == KITTY));
    }
    let bytes = 100 * (bits.values().sum::<u64>() + 16 * (4 - bits.len() as u64));
    Cost {
        frames: bytes.div_ceil(64) as u32,
        bytes,
    }
}

fn table() -> PositionTable {
    PositionTable::new(&schedule(), cost)
}

/// The naive meaning of a level: how often each page has shrunk.
fn depth(table: &PositionTable, position: u16) -> std::collections::BTreeMap<Page, usize> {
    let mut depth = std::collections::BTreeMap::new();
    for s in table.steps(position) {
        *depth.entry(s.page).or_default() += 1;
    }
    depth
}

#[test]
fn paths_stay_within_their_bound_and_end_as_low_as_it_allows() {
    let table = table();
    for (bound, end) in [(16, 16), (8, 8), (7, 8), (4, 4), (3, 4), (2, 2), (0, 2)] {
        let last = table.last(Bound(bound));
        assert_eq!(table.standing(last).min_bits, end, "bound {bound}");
        assert!(table.next_stop(last, Bound(bound)).is_none());
    }
    assert_eq!(table.last(Bound(8)), 4);
    assert_eq!(table.len(), 1 + 4 + 8 + 12);
}

#[test]
fn every_target_frees_frames_and_no_page_gains_bits() {
    let table = table();
    for position in 0..table.len() as u16 {
        for bound in [0, 2, 3, 4, 8, 16] {
            let Some(stop) = table.next_stop(position, Bound(bound)) else {
                continue;
            };
            assert!(table.standing(stop).cost.frames < table.standing(position).cost.frames);
            assert!(table.standing(stop).min_bits >= bound);
            let (from, to) = (depth(&table, position), depth(&table, stop));
            assert!(
                from.iter()
                    .all(|(page, n)| to.get(page).is_some_and(|m| m >= n)),
                "{position} to {stop}"
            );
        }
    }
}

#[test]
fn shrinking_again_and_again_ends_at_the_floor_of_the_bound() {
    let table = table();
    for bound in [2, 4, 8] {
        let mut position = 0;
        let mut hops = 0;
        while let Some(next) = table.next_stop(position, Bound(bound)) {
            position = next;
            hops += 1;
        }
        assert_eq!(position, table.last(Bound(bound)));
        assert!(hops <= 12);
    }
}

#[test]
fn a_block_whose_bound_falls_goes_on_from_the_first_level_that_covers_it() {
    let table = table();
    let eight = table.last(Bound(8));
    let entry = table.entry(eight, Bound(2)).unwrap();
    assert_eq!(table.steps(entry), &schedule().steps()[..4]);
    // A block that is lower than a bound cannot enter its path.
    assert_eq!(table.entry(table.last(Bound(2)), Bound(8)), None);
    assert_eq!(table.next_stop(table.last(Bound(2)), Bound(8)), None);
}

#[test]
fn changes_that_do_not_lower_a_page_are_refused() {
    use PageSide::K;
    let up = Schedule::new(1, vec![step(0, K, FOUR), step(0, K, EIGHT)]);
    assert!(up.unwrap_err().to_string().contains("never gains bits"));
    assert!(Schedule::new(1, vec![step(0, K, TWO), step(0, K, TWO)]).is_err());
    assert!(Schedule::new(1, vec![step(1, K, TWO)]).is_err());
    assert!(Schedule::new(1, vec![step(0, K, KITTY), step(0, K, TWO)]).is_ok());
}
