//! Which blocks shrink, when and how far, and what no request may lose by it.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod bits;
mod failures;
mod fixed;
mod overcommit;
mod steadiness;
mod who;

use std::collections::BTreeMap;

use common::{Harness, config, request};
use ebb_block_manager::precision::{
    BlockSize, LevelChange, LevelTable, MinBits, Page, PageLevel, PageSide, ShrinkOrder,
};
use ebb_block_manager::{PoolConfig, SeqBits, SeqId};
use ebb_scheduler::{Config, Mode, Notice, Request, StepPlan};

/// Frames of a block at 16, 8 and 2 bit. Both pages shrink to 8, to 4 and to 2 bit, in turns.
const AT_16: u32 = 32;
const AT_8: u32 = 16;
const AT_2: u32 = 4;

/// A pool of `frames` frames and the shrink reserve, with four frames for a sub-block.
fn shrinking_pool(frames: u32) -> PoolConfig {
    let pages = [PageSide::K, PageSide::V].map(|side| Page { layer: 0, side });
    let page_levels = [8, 4, 2].map(|bits| PageLevel { tag: bits, bits });
    let changes = page_levels
        .iter()
        .flat_map(|&to| pages.map(|page| LevelChange { page, to }));
    let order = ShrinkOrder::new(1, changes.collect()).expect("pages only shrink");
    let levels = LevelTable::new(&order, |taken| {
        let bits: BTreeMap<u8, u32> = taken
            .iter()
            .map(|step| (step.page.side as u8, step.to.bits.into()))
            .collect();
        let frames = bits.values().sum::<u32>() + 16 * (2 - bits.len() as u32);
        BlockSize {
            frames,
            bytes: u64::from(frames) * 1000,
        }
    });
    let reserve = levels.largest_target();
    PoolConfig {
        levels,
        protected: MinBits(8),
        sink: MinBits(8),
        max_blocks_per_seq: 64,
        ..PoolConfig::whole(frames + reserve, 1000, 4)
    }
}

/// Nothing shrinks before it must.
fn progressive() -> Config {
    Config {
        mode: Mode::Progressive,
        low_water_permille: 0,
        high_water_permille: 0,
        ..config()
    }
}

fn with_priority(priority: i32, request: Request) -> Request {
    Request {
        priority,
        ..request
    }
}

fn at_least(min_kv_bits: u8, request: Request) -> Request {
    Request {
        min_kv_bits,
        ..request
    }
}

/// A request with the same prompt and another id.
fn same_prompt(id: u64, of: &Request, tokens: usize, max_tokens: u32) -> Request {
    Request {
        prompt: of.prompt[..tokens].into(),
        max_tokens,
        ..request(id, 1, 1)
    }
}

/// The block manager's id of a request in a plan.
fn seq_of(plan: &StepPlan, request: u64) -> Option<SeqId> {
    let slice = plan.slices.iter().find(|s| s.request.0 == request);
    slice.map(|slice| slice.seq)
}

/// The precision levels of a sequence's blocks.
fn levels(h: &Harness, seq: SeqId) -> Vec<u16> {
    let table = h.scheduler.blocks().table(seq);
    table.iter().map(|(level, _)| level).collect()
}

/// Lowest bits of each block of a sequence.
fn bits(h: &Harness, seq: SeqId) -> Vec<u8> {
    let table = &h.scheduler.blocks().config().levels;
    let levels = levels(h, seq).into_iter().map(|p| table.level(p));
    levels.map(|level| level.lowest_bits).collect()
}

/// The bits that the end of a request says it was computed from.
fn bits_at_end(h: &Harness, id: u64) -> SeqBits {
    let bits = h.notices.iter().find_map(|notice| match notice {
        Notice::Finished { request, bits, .. } if request.0 == id => Some(*bits),
        _ => None,
    });
    bits.unwrap_or_else(|| panic!("request {id} has not ended"))
}

/// Whether a sequence has a block that could shrink now.
fn can_shrink(h: &Harness, seq: SeqId) -> bool {
    let blocks = h.scheduler.blocks();
    let sealed = blocks.committed(seq) / ebb_block_manager::BLOCK_TOKENS;
    let table = blocks.table(seq);
    (0..sealed).any(|index| {
        let (level, _) = table.get(index).expect("a sealed block");
        let min_bits = blocks.min_bits(table.ids()[index]);
        blocks
            .config()
            .levels
            .next_target(level, min_bits)
            .is_some()
    })
}
