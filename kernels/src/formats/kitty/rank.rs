//! Which channels of a page keep 4 bits: those of the greatest mean magnitude on the 4-bit page, or
//! for comparison on the 16-bit rows, or those of the greatest variance, or any. In exact integers,
//! so that every device ranks alike.

use half::{bf16, f16};

use super::super::MAX_HEAD_DIM;
use super::super::affine::{Grouping, Meta};
use super::super::ladder::LadderPage;
use super::super::simd::vectorised;
use crate::{BLOCK_TOKENS, split_mix};

/// By what channels are ranked that [`index_of_loudest`] does not rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ranking {
    /// Mean magnitude of the 16-bit rows: the paper's equation 2.
    SixteenBit,
    /// Variance over the tokens of the 4-bit page.
    Variance,
    /// None: channels drawn anew for each page, from its metadata.
    Random,
}

impl Ranking {
    /// The index of a 4-bit `page` of `rows`, as [`index_of_loudest`] has it.
    pub(crate) fn index(self, page: &LadderPage, rows: &[bf16], boosted: usize) -> Vec<u8> {
        let d = page.shape.head_dim;
        match self {
            Ranking::SixteenBit => index_of_loudest_rows(d, rows, boosted),
            Ranking::Variance => index(boosted, &variance(meta_of(page), d, &page.codes)),
            Ranking::Random => index(boosted, &drawn(&page.meta, d)),
        }
    }
}

/// The index of a 4-bit page by the mean magnitude of its channels: a channel's rank if it is among
/// the `boosted` first, else `boosted`. Of equal channels the lower one ranks first.
pub(crate) fn index_of_loudest(page: &LadderPage, boosted: usize) -> Vec<u8> {
    let loudness = loudness(meta_of(page), page.shape.head_dim, &page.codes);
    index(boosted, &loudness)
}

/// The same by the mean magnitude of 16-bit `rows`, `[tokens][D]`, all of them within fp16.
pub(crate) fn index_of_loudest_rows(head_dim: usize, rows: &[bf16], boosted: usize) -> Vec<u8> {
    let mut sums = vec![0; head_dim];
    for row in rows.chunks_exact(head_dim) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += magnitude(*x);
        }
    }
    index(boosted, &sums)
}

fn meta_of(page: &LadderPage) -> Meta<'_> {
    Meta::of(&page.meta, Grouping::Channel.groups(page.shape))
}

/// `floor(|x| * 2^24)`, below 2^40: exact from 2^-17 on, where a bf16 has no lower bit. Sums of 128
/// are below 2^47, so no order of summation matters.
fn magnitude(x: bf16) -> u64 {
    let (exponent, fraction) = (u32::from(x.to_bits() >> 7 & 0xff), x.to_bits() & 0x7f);
    let significand = u64::from(0x80 | fraction);
    match exponent {
        110.. => significand << (exponent - 110),
        103..110 => significand >> (110 - exponent),
        _ => 0,
    }
}

/// The greatest first.
fn index<T: Ord>(boosted: usize, scores: &[T]) -> Vec<u8> {
    let mut channels: Vec<usize> = (0..scores.len()).collect();
    channels.sort_by_key(|c| (std::cmp::Reverse(&scores[*c]), *c));
    let mut index = vec![boosted as u8; scores.len()];
    for (rank, channel) in channels[..boosted].iter().enumerate() {
        index[*channel] = rank as u8;
    }
    index
}

/// Variance of every channel, in units of `(2^-24 / (15 * 128))^2`: `R^2 (128 sum c^2 - (sum
/// c)^2)`, below 2^103.
fn variance(meta: Meta<'_>, head_dim: usize, codes: &[u8]) -> Vec<u128> {
    let of = |channel: usize| {
        let codes = codes[channel..]
            .iter()
            .step_by(head_dim)
            .map(|c| u128::from(*c));
        let (sum, squares) = codes.fold((0, 0), |(sum, squares), c| (sum + c, squares + c * c));
        let range = units(meta.range(channel)).unsigned_abs();
        u128::from(range).pow(2) * (BLOCK_TOKENS as u128 * squares - sum * sum)
    };
    (0..head_dim).map(of).collect()
}

/// A number for every channel that says nothing, but is the same wherever the page's metadata is:
/// FNV-1a of the metadata, then SplitMix64.
fn drawn(meta: &[u8], head_dim: usize) -> Vec<u64> {
    let seed = meta.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let places = 1..=head_dim as u64;
    places.map(|place| split_mix(seed, place)).collect()
}

/// `sum over tokens |z + c R / 15|` of every channel, in units of `2^-24 / 15`: exact, so no order
/// of summation matters. With N the tokens below zero it is `15 z (128 - 2 |N|) + R (sum c - 2 sum
/// over N c)`.
fn loudness(meta: Meta<'_>, head_dim: usize, codes: &[u8]) -> Vec<i64> {
    let terms: Vec<(i64, i64)> = (0..head_dim)
        .map(|c| (15 * units(meta.zero(c)), units(meta.range(c))))
        .collect();
    let mut sums = Sums::default();
    for (first, (zero, range)) in sums.first_positive.iter_mut().zip(&terms) {
        *first = (0..16).filter(|c| zero + range * c < 0).count() as u16;
    }
    add_codes(head_dim, codes, &mut sums);
    let loudness = terms.iter().enumerate().map(|(c, (zero, range))| {
        zero * (BLOCK_TOKENS as i64 - 2 * i64::from(sums.below[c]))
            + range * (i64::from(sums.codes[c]) - 2 * i64::from(sums.codes_below[c]))
    });
    loudness.collect()
}

/// What each channel's magnitude follows from; all at most 128 * 15.
struct Sums {
    /// The first code that stands for zero or more.
    first_positive: [u16; MAX_HEAD_DIM],
    codes: [u16; MAX_HEAD_DIM],
    below: [u16; MAX_HEAD_DIM],
    codes_below: [u16; MAX_HEAD_DIM],
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            first_positive: [0; _],
            codes: [0; _],
            below: [0; _],
            codes_below: [0; _],
        }
    }
}

vectorised! {
    fn add_codes(head_dim: usize, codes: &[u8], sums: &mut Sums) {
        let first = &sums.first_positive[..head_dim];
        let total = &mut sums.codes[..head_dim];
        let below = &mut sums.below[..head_dim];
        let codes_below = &mut sums.codes_below[..head_dim];
        for row in codes.chunks_exact(head_dim) {
            for c in 0..head_dim {
                let code = row[c] as u16;
                let negative = if code < first[c] { u16::MAX } else { 0 };
                // At most 128 codes below 16: no sum can overflow.
                total[c] = total[c].wrapping_add(code);
                below[c] = below[c].wrapping_sub(negative);
                codes_below[c] = codes_below[c].wrapping_add(negative & code);
            }
        }
    }
}

/// A finite fp16 in units of 2^-24, its denormal step.
fn units(x: f16) -> i64 {
    let (exponent, fraction) = (x.to_bits() >> 10 & 31, i64::from(x.to_bits() & 1023));
    let magnitude = match exponent {
        0 => fraction,
        e => (1024 + fraction) << (e - 1),
    };
    if x.is_sign_negative() {
        -magnitude
    } else {
        magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_exact() {
        for x in (0..=u16::MAX).map(f16::from_bits).filter(|x| x.is_finite()) {
            assert_eq!(units(x) as f64, x.to_f64() * 2f64.powi(24), "{x}");
        }
    }

    #[test]
    fn magnitudes_are_floors_and_exact_but_for_the_smallest() {
        let all = (0..=u16::MAX).map(bf16::from_bits);
        for x in all.filter(|x| x.to_f32().abs() <= 65504.0) {
            let exact = x.to_f64().abs() * 2f64.powi(24);
            assert_eq!(magnitude(x) as f64, exact.floor(), "{x}");
            assert!(exact < 128.0 || exact.fract() == 0.0, "{x}");
        }
    }
}
