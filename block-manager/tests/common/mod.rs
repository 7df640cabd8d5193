//! What the integration tests share.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod device;
pub(crate) mod model;
pub(crate) mod trace;

use std::collections::BTreeMap;

use ebb_block_manager::{
    PoolConfig, WindowConfig,
    precision::{BlockSize, LevelChange, LevelTable, Page, PageLevel, PageSide, ShrinkOrder},
};

/// A pool of 16-bit blocks only.
pub(crate) fn config(frames: u32, frames_per_sub_block: u32) -> PoolConfig {
    PoolConfig {
        max_blocks_per_seq: 128,
        ..PoolConfig::whole(frames, 4096, frames_per_sub_block)
    }
}

/// Positions of a model of two layers, whose bytes are the nominal bits.
pub(crate) fn levels(block_frames: u32) -> LevelTable {
    levels_of(&[0, 1], |bits| (block_frames * bits).div_ceil(64))
}

/// A window over the second of the two layers.
pub(crate) fn window(config: &PoolConfig, tokens: u32) -> WindowConfig {
    let kept_per_sub_block = config.frames_per_sub_block.div_ceil(2);
    let kept = levels_of(&[0], |bits| (8 * kept_per_sub_block * bits).div_ceil(32));
    let levels = 0..config.levels.len() as u16;
    let levels = levels.map(|at| kept.level(at).size.frames.min(config.level_frames(at)));
    let levels: Vec<u32> = levels.collect();
    let mut level = 0;
    let kept = match config.levels.len() {
        1 => LevelTable::whole(8 * kept_per_sub_block),
        _ => levels_of(&[0], |_| {
            level += 1;
            levels[level - 1]
        }),
    };
    WindowConfig {
        tokens,
        kept_per_sub_block,
        kept,
    }
}

/// Whether a place of a block is windowed.
pub(crate) fn is_windowed(config: &PoolConfig, level: u16, place: usize) -> bool {
    let Some(window) = &config.window else {
        return false;
    };
    match level {
        0 => place as u32 % config.frames_per_sub_block >= window.kept_per_sub_block,
        _ => place as u32 >= window.kept.level(level).size.frames,
    }
}

/// Those positions by what these layers take; `frames` of so many bits.
fn levels_of(of: &[u16], mut frames: impl FnMut(u32) -> u32) -> LevelTable {
    use PageSide::{K, V};
    let order = [
        (V, [0, 1], 8),
        (K, [0, 1], 8),
        (V, [1, 0], 4),
        (V, [0, 1], 2),
        (K, [1, 0], 4),
        (K, [0, 1], 2),
    ];
    let changes = order.into_iter().flat_map(|(side, layers, bits)| {
        layers.map(|layer| LevelChange {
            page: Page { layer, side },
            to: PageLevel { tag: bits, bits },
        })
    });
    let order = ShrinkOrder::new(2, changes.collect()).expect("every page shrinks");
    LevelTable::new(&order, |taken| {
        let mut bits = BTreeMap::new();
        let counted = taken
            .iter()
            .filter(|change| of.contains(&change.page.layer));
        counted.for_each(|change| _ = bits.insert(change.page, change.to.bits));
        let whole = 16 * (2 * of.len() as u32 - bits.len() as u32);
        let sum = whole + bits.values().map(|&b| u32::from(b)).sum::<u32>();
        BlockSize {
            frames: frames(sum),
            bytes: sum.into(),
        }
    })
}

/// `len` token ids that follow from `seed`.
pub(crate) fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) % 50_000)
        .collect()
}
