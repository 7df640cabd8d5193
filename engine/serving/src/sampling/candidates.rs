//! The tokens that may still be sampled, and the two cuts that need an order among them.

use super::scan::{BLOCK, Scan};
use super::weight::weight;

/// A row of logits as the filters see it.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) logits: &'a [f32],
    pub(super) scan: &'a Scan,
    pub(super) inverse_temperature: f32,
}

impl Row<'_> {
    /// The logit relative to the greatest, after temperature: at most 0, and never NaN.
    #[inline(always)]
    pub(super) fn scaled(&self, logit: f32) -> f32 {
        (logit - self.scan.max()) * self.inverse_temperature
    }
}

/// A set of tokens in id order, as parallel lists of which the first `len` entries count.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    len: usize,
    ids: Vec<u32>,
    logits: Vec<f32>,
    weights: Vec<u32>,
    /// (rank, weight) of the tokens among which a cut lies.
    order: Vec<(u64, u32)>,
}

/// Sorts by (logit descending, id ascending) when sorted descending: the logit's order in the
/// upper half, the id's complement in the lower.
fn rank(id: u32, logit: f32) -> u64 {
    // Adding zero makes -0 the same as 0.
    let bits = (logit + 0.0).to_bits();
    let negative = bits >> 31 == 1;
    let ordered = if negative { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

/// Eighths of octaves of weight, ascending: at most [`BUCKETS`].
fn bucket(weight: u32) -> usize {
    const BELOW_ONE: u32 = (1.0f32.to_bits() >> 20) - 1;
    ((weight as f32).to_bits() >> 20).saturating_sub(BELOW_ONE) as usize
}

const BUCKETS: usize = 256;

impl Candidates {
    /// Becomes every token of the row whose scaled logit is at least `level`.
    pub(super) fn collect(&mut self, row: &Row<'_>, level: f32) {
        let vocab = row.logits.len();
        self.ids.resize(vocab, 0);
        self.logits.resize(vocab, 0.0);
        self.weights.resize(vocab, 0);
        let mut len = 0;
        let blocks = row.scan.blocks().iter().zip(row.logits.chunks(BLOCK));
        for (block, (&max, logits)) in blocks.enumerate() {
            if row.scaled(max) < level {
                continue;
            }
            // Every logit is written, and the end moves on after those that belong: no branch to
            // mispredict.
            for (i, &logit) in logits.iter().enumerate() {
                self.ids[len] = (block * BLOCK + i) as u32;
                self.logits[len] = logit;
                len += usize::from(row.scaled(logit) >= level);
            }
        }
        for (weight_of, &logit) in self.weights.iter_mut().zip(&self.logits[..len]) {
            *weight_of = weight(row.scaled(logit));
        }
        self.len = len;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The sum of all weights.
    pub(super) fn weight(&self) -> u64 {
        self.weights[..self.len].iter().map(|&w| u64::from(w)).sum()
    }

    /// (id, weight) in id order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let ids = self.ids[..self.len].iter().copied();
        ids.zip(self.weights.iter().copied())
    }

    /// Keeps the `k` best, or all there are.
    pub(super) fn cut_to(&mut self, k: usize) {
        if k < self.len {
            self.cut(k as u64, |_| 1);
        }
    }

    /// Keeps the fewest best whose weights reach `target`, or all there are.
    pub(super) fn cut_to_weight(&mut self, target: u64) {
        self.cut(target, u64::from);
    }

    /// Keeps the fewest best whose `measure`s of weight add up to `target`. Heavier tokens are
    /// better, so the cut is first narrowed down to one bucket of weights.
    fn cut(&mut self, target: u64, measure: impl Fn(u32) -> u64) {
        let mut sums = [0u64; BUCKETS];
        for &weight in &self.weights[..self.len] {
            sums[bucket(weight)] += measure(weight);
        }
        let mut missing = target;
        let mut crossing = BUCKETS - 1;
        while crossing > 0 && sums[crossing] < missing {
            missing -= sums[crossing];
            crossing -= 1;
        }
        self.order.clear();
        for i in 0..self.len {
            let weight = self.weights[i];
            if bucket(weight) == crossing {
                self.order.push((rank(self.ids[i], self.logits[i]), weight));
            }
        }
        let mut rest = self.order.as_mut_slice();
        // The cut lies in `rest`; everything better is kept and counted.
        while rest.len() > 1 {
            let half = rest.len() / 2;
            rest.select_nth_unstable_by(half - 1, |a, b| b.0.cmp(&a.0));
            let (better, worse) = rest.split_at_mut(half);
            let sum: u64 = better.iter().map(|&(_, w)| measure(w)).sum();
            if sum >= missing {
                rest = better;
            } else {
                missing -= sum;
                rest = worse;
            }
        }
        if let Some(&mut (last, _)) = rest.first_mut() {
            self.keep_from(last);
        }
    }

    /// Keeps what ranks at `last` or better.
    fn keep_from(&mut self, last: u64) {
        let mut len = 0;
        for i in 0..self.len {
            let (id, logit) = (self.ids[i], self.logits[i]);
            self.ids[len] = id;
            self.logits[len] = logit;
            self.weights[len] = self.weights[i];
            len += usize::from(rank(id, logit) >= last);
        }
        self.len = len;
    }
}
