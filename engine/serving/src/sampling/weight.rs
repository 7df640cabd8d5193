//! Probabilities as integers.
//!
//! A token's weight is its probability relative to the most likely token's, in units of 2⁻³⁰.
//! Sums of integers do not depend on their order, so a distribution's total, a nucleus and a sample
//! come out the same however the vocabulary is cut into blocks, on any device. What is less
//! likely than 2⁻³¹ of the most likely token has weight 0 and is never sampled.
//!
//! Everything is separate multiplications and additions, never fused, on lanes that the compiler
//! makes vectors of: the same bits on every machine.

use std::f32::consts::LOG2_E;

/// The weight of the most likely token.
pub(super) const ONE: u32 = 1 << 30;

/// Below this scaled logit (the logarithm of 2⁻³¹, and some slack) every weight is 0.
pub(super) const ZERO_BELOW: f32 = -22.0;

/// Lanes that block sums run in.
const LANES: usize = 8;

/// 1.5·2²³. Adding it to a number of at most 22 bits rounds that to an integer, which is then in
/// the low bits of the sum; subtracting it again leaves the integer as a number. (A cast would
/// check its range lane by lane.)
const ROUND: f32 = 12_582_912.0;

/// `2^(z + bits)` for `z ≤ 0`, within 2·10⁻⁷ relative; exact at 0. Below -126 as for -126.
/// (A degree-6 minimax polynomial on half an octave each way, Cephes `exp2f`.)
#[inline(always)]
fn exp2(z: f32, bits: u32) -> f32 {
    let z = if z < -126.0 { -126.0 } else { z };
    let rounded = z + ROUND;
    let f = z - (rounded - ROUND);
    let mut p = 1.535_336_2e-4;
    p = p * f + 1.339_887_4e-3;
    p = p * f + 9.618_437e-3;
    p = p * f + 5.550_332_4e-2;
    p = p * f + 2.402_264_8e-1;
    p = p * f + 6.931_472e-1;
    p = p * f + 1.0;
    // The low bits of `rounded` are an integer in two's complement: into the exponent with it.
    let scale = rounded.to_bits().wrapping_add(127 + bits).wrapping_shl(23);
    p * f32::from_bits(scale)
}

/// The weight of a token whose scaled logit is `y ≤ 0` below the most likely one's.
#[inline(always)]
pub(super) fn weight(y: f32) -> u32 {
    let (high, low) = halves(y);
    let integer = |rounded: u32| rounded.wrapping_sub(ROUND.to_bits());
    (integer(high) << 15).wrapping_add(integer(low))
}

/// A weight in two halves of 15 bits, for an `f32` holds 24: `high · 2¹⁵ + low`, where `low` is
/// signed. Both still have the bits of [`ROUND`] in them.
#[inline(always)]
fn halves(y: f32) -> (u32, u32) {
    const HALF: f32 = 32_768.0;
    let scaled = exp2(y * LOG2_E, 15);
    let high = scaled + ROUND;
    let low = (scaled - (high - ROUND)) * HALF + ROUND;
    (high.to_bits(), low.to_bits())
}

/// Sum of the weights of a block of at most [`BLOCK`](super::scan::BLOCK) logits.
pub(super) fn block_weight(block: &[f32], max: f32, inverse_temperature: f32) -> u64 {
    // Without the bits of ROUND, each is at most 2¹⁵ for each logit of the block: what overflows
    // is taken away again.
    let mut highs = [0u32; LANES];
    let mut lows = [0u32; LANES];
    let (lanes, rest) = block.as_chunks::<LANES>();
    for lane in lanes {
        for i in 0..LANES {
            let (high, low) = halves((lane[i] - max) * inverse_temperature);
            highs[i] = highs[i].wrapping_add(high);
            lows[i] = lows[i].wrapping_add(low);
        }
    }
    for (i, &logit) in rest.iter().enumerate() {
        let (high, low) = halves((logit - max) * inverse_temperature);
        highs[i] = highs[i].wrapping_add(high);
        lows[i] = lows[i].wrapping_add(low);
    }
    let rounds = (block.len() as u32).wrapping_mul(ROUND.to_bits());
    let sum = |lanes: [u32; LANES]| lanes.into_iter().fold(0, u32::wrapping_add);
    let high = u64::from(sum(highs).wrapping_sub(rounds));
    let low = i64::from(sum(lows).wrapping_sub(rounds) as i32);
    (high << 15).wrapping_add_signed(low)
}

/// Sum of `e^(logit - max)` over a block, in a fixed order.
pub(super) fn block_exp(block: &[f32], max: f32) -> f64 {
    let mut sums = [0.0f32; LANES];
    let (lanes, rest) = block.as_chunks::<LANES>();
    for lane in lanes {
        for i in 0..LANES {
            sums[i] += exp2((lane[i] - max) * LOG2_E, 0);
        }
    }
    for (sum, &logit) in sums.iter_mut().zip(rest) {
        *sum += exp2((logit - max) * LOG2_E, 0);
    }
    sums.into_iter().map(f64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_close_everywhere() {
        assert_eq!(exp2(0.0, 0), 1.0);
        assert_eq!(exp2(0.0, 15), 32_768.0);
        assert_eq!(exp2(f32::NEG_INFINITY, 0), exp2(-126.0, 0));
        let mut worst = 0.0f64;
        for i in 0..=1_260_000 {
            let z = -(i as f32) * 1e-4;
            let exact = f64::from(z).exp2();
            worst = worst.max((f64::from(exp2(z, 0)) - exact).abs() / exact);
        }
        assert!(worst < 2e-7, "relative error {worst:e}");
    }

    #[test]
    fn weights_are_probabilities_and_monotone() {
        assert_eq!(weight(0.0), ONE);
        assert_eq!(weight(ZERO_BELOW), 0);
        assert_eq!(weight(f32::NEG_INFINITY), 0);
        let mut last = ONE;
        for i in 0..=2_200_000 {
            let y = -(i as f32) * 1e-5;
            let weight = weight(y);
            assert!(weight <= last, "not monotone at {y}");
            let exact = f64::from(y).exp() * f64::from(ONE);
            let error = (f64::from(weight) - exact).abs();
            assert!(error < 0.51 + 1.5e-6 * exact, "{weight} for {exact} at {y}");
            last = weight;
        }
    }

    #[test]
    fn block_sums_are_sums_of_weights() {
        for len in [0, 1, 7, 8, 9, 127, 128] {
            for scale in [0.0, 0.1, 3.0] {
                let block: Vec<f32> = (0..len).map(|i| (i * 37 % 11) as f32 * -scale).collect();
                let weights = block.iter().map(|&l| u64::from(weight(l * 0.7)));
                assert_eq!(block_weight(&block, 0.0, 0.7), weights.sum::<u64>());
            }
        }
        let impossible = [f32::NEG_INFINITY; 128];
        assert_eq!(block_weight(&impossible, 0.0, 1.0), 0);
    }
}
