//! The index against a map from whole prefixes, with a hash so poor that most entries collide.

use std::collections::BTreeMap;

use super::*;
use crate::{BLOCK_TOKENS, PoolConfig, epoch::Epoch, precision::MinBits};

fn config() -> PoolConfig {
    PoolConfig::whole(1 << 12, 1, 1)
}

fn blocks() -> Blocks {
    Blocks::new(&config())
}

/// A small generator of our own: the sequence must not depend on a crate's version.
fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Text `which` of a few that share beginnings, `len` blocks long.
fn text(which: u64, len: usize) -> Vec<u32> {
    (0..len)
        .flat_map(|block| [(which >> block & 1) as u32; BLOCK_TOKENS])
        .collect()
}

fn find_chain(index: &PrefixIndex, blocks: &Blocks, tokens: &[u32]) -> Option<EntryId> {
    let (whole, _) = tokens.as_chunks::<BLOCK_TOKENS>();
    whole.iter().try_fold(EntryId::NONE, |parent, block| {
        index.find(blocks, parent, index.hash(parent, block), block)
    })
}

#[test]
fn finds_what_a_map_of_prefixes_finds_although_hashes_collide() {
    let (mut index, mut blocks) = (PrefixIndex::new(0, 7), blocks());
    index.mask_hashes(1);
    let mut map: BTreeMap<Vec<u32>, BlockId> = BTreeMap::new();
    let (mut cursors, mut state) = (vec![PrefixCursor::default(); 32], 42);
    let (mut hits, mut removed) = (0, 0);
    for _ in 0..20_000 {
        let (which, len) = (random(&mut state) % 32, random(&mut state) as usize % 5 + 1);
        let tokens = text(which, len);
        match random(&mut state) % 3 {
            0 if !map.contains_key(&tokens) => {
                let (before, last) = tokens.split_last_chunk::<BLOCK_TOKENS>().expect("a block");
                let Some(parent) = find_chain(&index, &blocks, before) else {
                    continue;
                };
                let block = blocks.add();
                *blocks.tokens_mut(block) = *last;
                index.insert(parent, index.hash(parent, last), block);
                map.insert(tokens, block);
            }
            1 => {
                let longer = map
                    .keys()
                    .any(|key| key.len() > tokens.len() && key.starts_with(&tokens));
                if let Some(block) = map.get(&tokens).copied().filter(|_| !longer) {
                    index.remove(find_chain(&index, &blocks, &tokens).expect("it is in the map"));
                    blocks.remove(block);
                    map.remove(&tokens);
                    removed += 1;
                }
            }
            _ => {
                let found = find_chain(&index, &blocks, &tokens).map(|id| index.get(id).block);
                assert_eq!(found, map.get(&tokens).copied());
                let whole = text(which, 5);
                let longest = (1..=5).take_while(|n| map.contains_key(&whole[..n * BLOCK_TOKENS]));
                let prefixes = Prefixes {
                    index: &index,
                    blocks: &blocks,
                    config: &config(),
                    done: Epoch::MAX,
                };
                let cursor = &mut cursors[which as usize];
                let hit = cursor.seek(prefixes, &whole, whole.len(), MinBits::ANY);
                assert_eq!(hit.tokens, longest.count() * BLOCK_TOKENS);
                hits += u32::from(found.is_some());
            }
        }
    }
    assert_eq!(index.len() as usize, map.len());
    assert!(
        hits > 1000 && removed > 500,
        "the test exercises little: {hits} hits, {removed} removed"
    );
}
