//! Each rule of the pool, one test a rule. Frames are counted for one frame a sub-block, so a full
//! block has eight.

#[path = "../common/mod.rs"]
mod common;
mod fork;
mod growth;
mod misuse;
mod prefix;
mod pressure;
mod reuse;
mod shrink;
mod states;
mod window;

use common::{config, text};
use ebb_block_manager::{BlockManager, SeqId};

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);
const C: SeqId = SeqId(3);

/// A pool of `frames` frames, one a sub-block.
fn pool(frames: u32) -> BlockManager {
    BlockManager::new(config(frames, 1)).expect("the shape is valid")
}

/// Starts a sequence, reserves its tokens and commits those that were not cached.
fn run(pool: &mut BlockManager, seq: SeqId, tokens: &[u32]) {
    let cached = pool.create(seq, tokens, tokens.len() - 1).cached_tokens;
    extend(pool, seq, &tokens[cached..]);
}

/// The same without looking into the prefix cache.
fn run_uncached(pool: &mut BlockManager, seq: SeqId, tokens: &[u32]) {
    pool.create(seq, tokens, 0);
    extend(pool, seq, tokens);
}

/// Reserves and commits tokens after the ones there are.
fn extend(pool: &mut BlockManager, seq: SeqId, tokens: &[u32]) {
    let len = pool.committed(seq) + tokens.len();
    pool.grow(seq, len)
        .expect("the test's pool is large enough");
    pool.commit(seq, tokens);
    pool.check().expect("the pool is sound");
}

fn copies(pool: &mut BlockManager) -> Vec<(u32, u32)> {
    let mut copies = Vec::new();
    pool.drain_copies(&mut copies);
    copies
}

/// All frames of a sequence in order.
fn frames(pool: &BlockManager, seq: SeqId) -> Vec<u32> {
    pool.table(seq)
        .iter()
        .flat_map(|(_, frames)| frames)
        .copied()
        .collect()
}
