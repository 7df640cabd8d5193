//! Time between tokens while the server reads prompts.

use super::Quantiles;
use crate::record::Record;

/// The tokens of one step come within this time of each other, in any order.
const STEP_SPREAD_US: u64 = 2000;

/// Gaps of `timed` at whose end a first token of another of `all` came as well.
///
/// A first token comes with the step that read the last of a prompt, so a gap with one in it is
/// such a step. Steps that read an earlier chunk of a long prompt cannot be told from outside and
/// are not counted.
pub(super) fn quantiles(timed: &[&Record], all: &[&Record]) -> Option<Quantiles> {
    let mut firsts: Vec<u64> = all.iter().filter_map(|r| r.first_us()).collect();
    firsts.sort_unstable();
    let gaps = timed.iter().flat_map(|record| record.gaps_us());
    let during = gaps.filter(|(from, to, _)| {
        // What came just after `from` came with it, and so for `to`. The request's own first token
        // is not later.
        let spread = STEP_SPREAD_US.min((to - from) / 2);
        let next = firsts.partition_point(|first| *first <= from + spread);
        firsts.get(next).is_some_and(|first| *first <= to + spread)
    });
    Quantiles::of(during.map(|(from, to, n)| ((to - from) as f64 / f64::from(n), n)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn tokens_of_one_step_come_in_any_order() {
        // b's first token comes just after a's of the same step: once with the second token, once
        // with the first.
        let us = |times: &[u64]| {
            let mut r = record(0, &vec![0; times.len()]);
            r.arrivals_us = times.iter().map(|at| (*at, 1)).collect();
            r
        };
        let a = us(&[1000, 51_000, 61_000]);
        let q = |b: u64| quantiles(&[&a], &[&a, &us(&[b])]).map(|q| q.max.round());
        assert_eq!(q(51_300), Some(50.0));
        assert_eq!(q(50_900), Some(50.0));
        assert_eq!(q(1_200), None);
        assert_eq!(q(61_100), Some(10.0));
    }

    #[test]
    fn only_gaps_with_anothers_first_token_count() {
        let a = record(0, &[10, 20, 70, 80]);
        let b = record(15, &[70, 81, 90]);
        let q = quantiles(&[&a, &b], &[&a, &b]).unwrap();
        // From 20 to 70 alone: b's first token came at its end.
        assert_eq!(q.count, 1);
        assert!((q.max - 50.0).abs() < 0.1);
        assert_eq!(quantiles(&[&a], &[&a]), None);
    }
}
