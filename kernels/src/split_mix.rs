//! SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): random numbers that are functions of their
//! place.

/// Number `place` of the sequence that begins at `seed`; the first has place 1.
pub fn split_mix(seed: u64, place: u64) -> u64 {
    let x = seed.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation (Vigna's splitmix64.c) for seed 1234567.
    #[test]
    fn the_numbers_are_the_published_ones() {
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(
            [1, 2, 3, 4, 5].map(|place| split_mix(1_234_567, place)),
            expected
        );
    }
}
