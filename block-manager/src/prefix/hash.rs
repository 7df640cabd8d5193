//! The hash that finds a prefix entry. A hit compares the tokens themselves, so the hash affects
//! how fast a lookup is, never what it returns.

use crate::{SUB_BLOCK_TOKENS, block::BlockTokens};

/// Odd constants with bits set above any token id.
const KEYS: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
];

/// Unfinished hash of a chain of blocks: whole blocks, and some sub-blocks of the next.
///
/// Four independent lanes of 64×64→128 bit multiplications, folded (as in wyhash), so that the
/// multiplier is busy every cycle. Taking one sub-block at a time, when it is full and still in the
/// processor's cache, leaves almost nothing to do when a block is sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainHash {
    lanes: [u64; 4],
}

impl ChainHash {
    /// The chain whose hash is `before`, to be continued.
    pub(crate) fn after(before: u64) -> Self {
        Self {
            lanes: KEYS.map(|key| before ^ key),
        }
    }

    /// Adds the next sub-block.
    pub(crate) fn push(&mut self, tokens: &[u32; SUB_BLOCK_TOKENS]) {
        let (words, _) = tokens.as_chunks::<4>();
        for (lane, (&[a, b, c, d], key)) in self.lanes.iter_mut().zip(words.iter().zip(KEYS)) {
            *lane = fold(*lane ^ pair(a, b), pair(c, d) ^ key);
        }
    }

    /// Hash of the chain with the block that is now complete.
    pub(crate) fn finish(&self) -> u64 {
        let [a, b, c, d] = self.lanes;
        fold(
            fold(a ^ KEYS[1], b ^ KEYS[2]),
            fold(c ^ KEYS[3], d ^ KEYS[0]),
        )
    }

    /// Hash of the chain `before` with one more block.
    pub(crate) fn whole(before: u64, block: &BlockTokens) -> u64 {
        let mut hash = Self::after(before);
        block
            .as_chunks()
            .0
            .iter()
            .for_each(|sub_block| hash.push(sub_block));
        hash.finish()
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_token_its_place_and_the_prefix_count() {
        let base: BlockTokens = std::array::from_fn(|i| i as u32);
        let mut seen = HashSet::from([ChainHash::whole(1, &base), ChainHash::whole(2, &base)]);
        for at in 0..base.len() {
            let mut other = base;
            other[at] += 1000;
            seen.insert(ChainHash::whole(1, &other));
            let mut swapped = base;
            swapped.swap(at, (at + 1) % base.len());
            seen.insert(ChainHash::whole(1, &swapped));
        }
        assert_eq!(seen.len(), 2 + 2 * base.len());
    }

    #[test]
    fn blocks_of_one_repeated_token_differ() {
        let hashes: HashSet<u64> = (0..150_000)
            .map(|token| ChainHash::whole(7, &[token; 128]))
            .collect();
        assert_eq!(hashes.len(), 150_000);
    }
}
