//! Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror and Shaw, SC'11).
//!
//! There is no state to advance or to keep when a sequence is preempted: the random bits of a
//! sample are a function of a key and a counter, the same on every device.

use std::hash::{BuildHasher, Hasher, RandomState};

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Ten rounds of Philox4x32: 128 random bits for each (counter, key).
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        let (a_high, a_low) = ((a >> 32) as u32, a as u32);
        let (b_high, b_low) = ((b >> 32) as u32, b as u32);
        counter = [
            b_high ^ counter[1] ^ key[0],
            b_low,
            a_high ^ counter[3] ^ key[1],
            a_low,
        ];
    }
    counter
}

/// 64 random bits for the token at `position` of the output (0 is the first) of choice `choice`.
/// The key is the seed; the last two counter words are free for further samples per token.
pub(super) fn draw_bits(seed: u64, choice: u32, position: u32) -> u64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let bits = philox4x32_10([position, choice, 0, 0], key);
    u64::from(bits[0]) | (u64::from(bits[1]) << 32)
}

/// A seed for a request that names none.
pub fn random_seed() -> u64 {
    // The standard library keys each `RandomState` from the system's randomness, differently.
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the authors' Random123 distribution (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn seed_choice_and_position_all_matter() {
        let mut seen = std::collections::HashSet::new();
        for seed in [0, 1, 1 << 32, u64::MAX] {
            for choice in 0..8 {
                for position in 0..64 {
                    assert!(seen.insert(draw_bits(seed, choice, position)));
                }
            }
        }
        assert_ne!(random_seed(), random_seed());
    }
}
