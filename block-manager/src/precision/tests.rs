//! Levels and shrink orders of a small model.

use super::*;

const EIGHT: PageLevel = PageLevel { tag: 1, bits: 8 };
const FOUR: PageLevel = PageLevel { tag: 2, bits: 4 };
const KITTY: PageLevel = PageLevel { tag: 3, bits: 2 };
const TWO: PageLevel = PageLevel { tag: 4, bits: 2 };

fn change(layer: u16, side: PageSide, to: PageLevel) -> LevelChange {
    LevelChange {
        page: Page { layer, side },
        to,
    }
}

/// Two layers; V goes to 2 bit before K leaves 8.
fn order() -> ShrinkOrder {
    use PageSide::{K, V};
    ShrinkOrder::new(
        2,
        vec![
            change(0, V, EIGHT),
            change(1, V, EIGHT),
            change(0, K, EIGHT),
            change(1, K, EIGHT),
            change(0, V, FOUR),
            change(0, V, TWO),
            change(1, V, FOUR),
            change(1, K, FOUR),
            change(1, V, TWO),
            change(0, K, FOUR),
            change(1, K, KITTY),
            change(1, K, TWO),
        ],
    )
    .unwrap()
}

/// 100 bytes a bit and page, 64 bytes a frame.
fn size(changes: &[LevelChange]) -> BlockSize {
    let mut bits = std::collections::BTreeMap::new();
    for change in changes {
        bits.insert(
            change.page,
            u64::from(change.to.bits) + u64::from(change.to == KITTY),
        );
    }
    let bytes = 100 * (bits.values().sum::<u64>() + 16 * (4 - bits.len() as u64));
    BlockSize {
        frames: bytes.div_ceil(64) as u32,
        bytes,
    }
}

fn table() -> LevelTable {
    LevelTable::new(&order(), size)
}

/// The naive meaning of a level: how often each page has shrunk.
fn depth(table: &LevelTable, level: u16) -> std::collections::BTreeMap<Page, usize> {
    let mut depth = std::collections::BTreeMap::new();
    for change in table.changes(level) {
        *depth.entry(change.page).or_default() += 1;
    }
    depth
}

#[test]
fn paths_stay_within_their_min_bits_and_end_as_low_as_it_allows() {
    let table = table();
    for (min_bits, end) in [(16, 16), (8, 8), (7, 8), (4, 4), (3, 4), (2, 2), (0, 2)] {
        let last = table.last(MinBits(min_bits));
        assert_eq!(table.level(last).lowest_bits, end, "min_bits {min_bits}");
        assert!(table.next_target(last, MinBits(min_bits)).is_none());
    }
    assert_eq!(table.last(MinBits(8)), 4);
    assert_eq!(table.len(), 1 + 4 + 8 + 12);
}

#[test]
fn every_target_frees_frames_and_no_page_gains_bits() {
    let table = table();
    for level in 0..table.len() as u16 {
        for min_bits in [0, 2, 3, 4, 8, 16] {
            let Some(target) = table.next_target(level, MinBits(min_bits)) else {
                continue;
            };
            assert!(table.level(target).size.frames < table.level(level).size.frames);
            assert!(table.level(target).lowest_bits >= min_bits);
            let (from, to) = (depth(&table, level), depth(&table, target));
            assert!(
                from.iter()
                    .all(|(page, n)| to.get(page).is_some_and(|m| m >= n)),
                "{level} to {target}"
            );
        }
    }
}

#[test]
fn shrinking_again_and_again_ends_at_the_floor() {
    let table = table();
    for min_bits in [2, 4, 8] {
        let mut level = 0;
        let mut hops = 0;
        while let Some(next) = table.next_target(level, MinBits(min_bits)) {
            level = next;
            hops += 1;
        }
        assert_eq!(level, table.last(MinBits(min_bits)));
        assert!(hops <= 12);
    }
}

#[test]
fn a_block_whose_min_bits_fall_goes_on_from_the_first_level_that_covers_it() {
    let table = table();
    let eight = table.last(MinBits(8));
    let entry = table.entry(eight, MinBits(2)).unwrap();
    assert_eq!(table.changes(entry), &order().changes()[..4]);
    // A block that is lower than the bound cannot enter its path.
    assert_eq!(table.entry(table.last(MinBits(2)), MinBits(8)), None);
    assert_eq!(table.next_target(table.last(MinBits(2)), MinBits(8)), None);
}

#[test]
fn changes_that_do_not_lower_a_page_are_refused() {
    use PageSide::K;
    let up = ShrinkOrder::new(1, vec![change(0, K, FOUR), change(0, K, EIGHT)]);
    assert!(up.unwrap_err().to_string().contains("never gains bits"));
    assert!(ShrinkOrder::new(1, vec![change(0, K, TWO), change(0, K, TWO)]).is_err());
    assert!(ShrinkOrder::new(1, vec![change(1, K, TWO)]).is_err());
    assert!(ShrinkOrder::new(1, vec![change(0, K, KITTY), change(0, K, TWO)]).is_ok());
}

#[test]
fn a_table_of_other_sizes_is_the_one_that_they_make_at_first() {
    // Frames of 64 and of 640 bytes: fewer levels free enough to be a target.
    let coarse = |changes: &[LevelChange]| {
        let bytes = size(changes).bytes;
        BlockSize {
            frames: bytes.div_ceil(640) as u32,
            bytes,
        }
    };
    let levels = table();
    let resized = levels.resized(|level| coarse(levels.changes(level)));
    assert_eq!(resized, LevelTable::new(&order(), coarse));
    assert_ne!(resized, levels);
}
