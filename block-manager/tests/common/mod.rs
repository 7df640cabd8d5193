//! What the integration tests share.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod device;
pub(crate) mod model;
pub(crate) mod trace;

use std::collections::BTreeMap;

use ebb_block_manager::{
    PoolConfig,
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
        taken
            .iter()
            .for_each(|change| _ = bits.insert(change.page, change.to.bits));
        let whole = 16 * (4 - bits.len() as u32);
        let sum = whole + bits.values().map(|&b| u32::from(b)).sum::<u32>();
        BlockSize {
            frames: (block_frames * sum).div_ceil(64),
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
