//! top-k, top-p and min-p, and sampling from what they keep.
//!
//! Tokens are ranked by (logit descending, id ascending). min-p keeps the tokens of at least that
//! share of the greatest probability, top-k the k best of those, top-p the shortest run of the
//! best of those whose weights reach that share of their sum. Sampling walks the kept tokens in
//! id order until the sum of weights passes a random point of the total. Nothing sorts: the two
//! cuts are found by selection, over the few tokens that can matter.

use super::SamplingParams;
use super::candidates::{Candidates, Row};
use super::scan::{BLOCK, Scan};
use super::weight::{ONE, ZERO_BELOW, block_weight, weight};

/// How far below the most likely token (in scaled logits) the first search for the k best goes.
const BEST_LEVEL: f32 = -5.0;
/// The same for a nucleus, which ends further down.
const NUCLEUS_LEVEL: f32 = -9.0;

/// Buffers of the filters, kept from row to row.
#[derive(Debug, Default)]
pub(super) struct Filter {
    kept: Candidates,
    /// Sum of weights of each block of the vocabulary.
    sums: Vec<u64>,
}

impl Filter {
    /// Samples a token with 64 random bits. `scan` is that of `logits`; the temperature is not 0.
    pub(super) fn sample(
        &mut self,
        logits: &[f32],
        scan: &Scan,
        params: &SamplingParams,
        bits: u64,
    ) -> u32 {
        let row = Row {
            logits,
            scan,
            inverse_temperature: 1.0 / params.temperature,
        };
        let top_k = match params.top_k as usize {
            k if k == 0 || k >= logits.len() => None,
            k => Some(k),
        };
        let floor = match params.min_p {
            share if share > 0.0 => Some(share.ln().max(ZERO_BELOW)),
            _ => None,
        };
        match (top_k, floor) {
            (None, None) if params.top_p >= 1.0 => return self.draw_unfiltered(&row, bits),
            (None, None) => self.keep_nucleus(&row, params.top_p),
            (None, Some(floor)) => self.kept.collect(&row, floor),
            (Some(k), floor) => self.keep_best(&row, k, floor.unwrap_or(ZERO_BELOW)),
        }
        if params.top_p < 1.0 && (top_k.is_some() || floor.is_some()) {
            let target = share(self.kept.weight(), params.top_p);
            self.kept.cut_to_weight(target);
        }
        let mut point = point(bits, self.kept.weight());
        for (id, weight) in self.kept.iter() {
            match point.checked_sub(u64::from(weight)) {
                Some(rest) => point = rest,
                None => return id,
            }
        }
        scan.argmax(logits)
    }

    /// The `k` best tokens at `floor` or above.
    fn keep_best(&mut self, row: &Row<'_>, k: usize, floor: f32) {
        let mut level = BEST_LEVEL.max(floor);
        self.kept.collect(row, level);
        while self.kept.len() < k && level > floor {
            level = (level * 2.0).max(floor);
            self.kept.collect(row, level);
        }
        self.kept.cut_to(k);
    }

    /// The fewest best tokens with a share of `top_p` of everything.
    fn keep_nucleus(&mut self, row: &Row<'_>, top_p: f32) {
        let total = self.sum_blocks(row);
        let target = share(total, top_p);
        self.kept.collect(row, NUCLEUS_LEVEL);
        if self.kept.weight() < target {
            // So far down that all tokens together could not weigh what may be missing.
            let each = (total - target) as f64 / (row.logits.len() as f64 * f64::from(ONE));
            let level = (each.ln() as f32 - 0.01).max(ZERO_BELOW);
            self.kept.collect(row, level.min(NUCLEUS_LEVEL));
        }
        self.kept.cut_to_weight(target);
    }

    /// The sum of all weights; `sums` by block.
    fn sum_blocks(&mut self, row: &Row<'_>) -> u64 {
        let (max, scale) = (row.scan.max(), row.inverse_temperature);
        let blocks = row.logits.chunks(BLOCK);
        self.sums.clear();
        self.sums
            .extend(blocks.map(|block| block_weight(block, max, scale)));
        self.sums.iter().sum()
    }

    fn draw_unfiltered(&mut self, row: &Row<'_>, bits: u64) -> u32 {
        let mut point = point(bits, self.sum_blocks(row));
        let mut block = 0;
        while let Some(rest) = point.checked_sub(self.sums[block]) {
            point = rest;
            block += 1;
        }
        let mut id = block * BLOCK;
        while let Some(rest) = point.checked_sub(u64::from(weight(row.scaled(row.logits[id])))) {
            point = rest;
            id += 1;
        }
        id as u32
    }
}

/// A point below `total`, uniform in 64 random bits.
fn point(bits: u64, total: u64) -> u64 {
    ((u128::from(bits) * u128::from(total)) >> 64) as u64
}

/// The least weight that is at least `p` of `total`. Totals are below 2^53, so exact as `f64`.
fn share(total: u64, p: f32) -> u64 {
    (total as f64 * f64::from(p)).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplingOptions;
    use proptest::prelude::*;

    /// The definition, with the same integer weights and a full sort. Sets must be equal, and
    /// every sample, with no margin for rounding.
    fn naive(logits: &[f32], options: &SamplingOptions, bits: u64) -> (Vec<u32>, u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let y = |id: usize| (logits[id] - max) * (1.0 / options.temperature);
        let mut ranked: Vec<usize> = (0..logits.len())
            .filter(|&id| y(id) >= ZERO_BELOW)
            .filter(|&id| options.min_p <= 0.0 || y(id) >= options.min_p.ln())
            .collect();
        ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if options.top_k > 0 {
            ranked.truncate(options.top_k as usize);
        }
        let sum = |ids: &[usize]| -> u64 { ids.iter().map(|&id| u64::from(weight(y(id)))).sum() };
        if options.top_p < 1.0 {
            let target = share(sum(&ranked), options.top_p);
            let mut reached = 0;
            let kept = ranked.iter().position(|&id| {
                reached += u64::from(weight(y(id)));
                reached >= target
            });
            ranked.truncate(kept.map_or(ranked.len(), |last| last + 1));
        }
        ranked.sort_unstable();
        let mut point = point(bits, sum(&ranked));
        let sampled = ranked.iter().find(|&&id| {
            let weight = u64::from(weight(y(id)));
            let here = point < weight;
            point = point.wrapping_sub(weight);
            here
        });
        let sampled = *sampled.expect("the point is below the total") as u32;
        (ranked.into_iter().map(|id| id as u32).collect(), sampled)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn sets_and_draws_are_exactly_those_of_a_full_sort(
            logits in prop::collection::vec(
                prop_oneof![-12.0f32..12.0, (0i8..4).prop_map(|i| f32::from(i) * 0.5)],
                1..600,
            ),
            temperature in 0.05f32..4.0,
            top_k in prop_oneof![Just(0u32), 1u32..8, 1u32..700],
            top_p in prop_oneof![Just(1.0f32), 0.001f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 1e-9f32..1.0],
            bits in any::<u64>(),
        ) {
            let options = SamplingOptions {
                temperature, top_k, top_p, min_p, ..Default::default()
            };
            let (set, sampled) = naive(&logits, &options, bits);
            let params = options.validate(logits.len()).expect("valid");
            let mut scan = Scan::default();
            scan.run(&logits).expect("sound");
            let mut filter = Filter::default();
            prop_assert_eq!(filter.sample(&logits, &scan, &params, bits), sampled);
            let all = top_k == 0 || top_k as usize >= logits.len();
            let unfiltered = top_p >= 1.0 && min_p <= 0.0 && all;
            if !unfiltered {
                let kept: Vec<u32> = filter.kept.iter().map(|(id, _)| id).collect();
                prop_assert_eq!(kept, set);
            }
        }
    }

    /// A nucleus that ends among tens of thousands of unlikely tokens, each in its own place.
    #[test]
    fn a_nucleus_may_end_far_down() {
        for depth in [6.0, 9.5, 11.0, 14.0] {
            let mut logits: Vec<f32> = (0..30_000)
                .map(|i| -depth - (i * 7919 % 30_000) as f32 * 1e-5)
                .collect();
            logits[12_345] = 0.0;
            for top_p in [0.3, 0.9, 0.95, 0.999] {
                let options = SamplingOptions {
                    top_p,
                    ..Default::default()
                };
                let (set, sampled) = naive(&logits, &options, 1 << 63);
                let params = options.validate(logits.len()).expect("valid");
                let mut scan = Scan::default();
                scan.run(&logits).expect("sound");
                let mut filter = Filter::default();
                assert_eq!(filter.sample(&logits, &scan, &params, 1 << 63), sampled);
                let kept: Vec<u32> = filter.kept.iter().map(|(id, _)| id).collect();
                assert!(kept == set, "{} of {} kept", kept.len(), set.len());
            }
        }
    }

    #[test]
    fn points_and_shares_stay_inside() {
        assert_eq!(point(u64::MAX, 10), 9);
        assert_eq!(point(0, 10), 0);
        assert_eq!(share(10, 0.5), 5);
        assert_eq!(share(10, f32::MIN_POSITIVE), 1);
        assert_eq!(
            share(u64::from(u32::MAX) << 20, 1.0 - f32::EPSILON) >> 20,
            4_294_966_783
        );
    }
}
