//! Quantiles of latencies.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Microseconds of a week. What takes longer counts as this.
const MOST_US: u64 = 7 * 24 * 3600 * 1_000_000;

/// Of microseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MOST_US, 3).expect("bounds and digits that HdrHistogram takes")
}

/// A distribution in milliseconds, to three digits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half is at most this.
    pub p50: f64,
    /// Nine tenths are at most this.
    pub p90: f64,
    /// All but a hundredth are at most this.
    pub p99: f64,
    /// All are at most this.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// How many there are.
    pub count: u64,
}

impl Quantiles {
    /// Of values in microseconds, each as often as it says; none of nothing.
    pub fn of(values_us: impl Iterator<Item = (f64, u32)>) -> Option<Self> {
        let mut histogram = histogram();
        for (value, count) in values_us {
            histogram.saturating_record_n(value.round().max(0.0) as u64, count.into());
        }
        if histogram.is_empty() {
            return None;
        }
        let at = |share| histogram.value_at_quantile(share) as f64 / 1e3;
        Some(Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: histogram.max() as f64 / 1e3,
            mean: histogram.mean() / 1e3,
            count: histogram.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let values = || (1..=10_000u32).map(|i| (f64::from(i * 7919 % 10_007) * 100.0, 1));
        let mut sorted: Vec<f64> = values().map(|(us, _)| us / 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        let q = Quantiles::of(values()).unwrap();
        for (found, rank) in [(q.p50, 4999), (q.p90, 8999), (q.p99, 9899), (q.max, 9999)] {
            let exact = sorted[rank];
            assert!(
                (found - exact).abs() <= 0.001 * exact,
                "{found} is not {exact}"
            );
        }
        let mean = sorted.iter().sum::<f64>() / 1e4;
        assert!((q.mean - mean).abs() < 0.001 * mean && q.count == 10_000);
    }

    #[test]
    fn tokens_that_came_together_count_each() {
        let q = Quantiles::of([(1000.0, 99), (9000.0, 1)].into_iter()).unwrap();
        assert_eq!((q.p50, q.p99, q.count), (1.0, 1.0, 100));
        assert_eq!(Quantiles::of(std::iter::empty()), None);
    }
}
