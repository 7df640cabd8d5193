//! From the times at which tokens came to figures.

use std::time::Duration;

/// One answer as its reader saw it; times count from the moment at which all requests were
/// submitted.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// When tokens came, and how many.
    pub arrivals: Vec<(Duration, u32)>,
    /// Mean bits of the keys and values that it was computed from.
    pub kv_bits: f64,
}

/// Gaps around one, itself among them, whose median tells how long it would take without what is
/// rare.
const AROUND: usize = 33;

/// What a workload gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Tokens a second while all requests decode: from the last first token to the first end. NaN
    /// if they never do.
    pub decode_tok_s: f64,
    /// All tokens over the whole time.
    pub out_tok_s: f64,
    /// Time between two tokens of an answer, median, milliseconds.
    pub itl_p50_ms: f64,
    /// The same, 99th percentile.
    pub itl_p99_ms: f64,
    /// The same of each gap's median with those around it in its answer: without steps that take
    /// longer than their neighbours, such as those in which every sequence's blocks shrink at once.
    pub itl_smooth_p99_ms: f64,
    /// A gap over that median, 99th percentile.
    pub itl_jitter_p99: f64,
    /// Time to the first token, median, milliseconds.
    pub ttft_p50_ms: f64,
    /// Mean bits over all answers.
    pub mean_kv_bits: f64,
}

/// The figures of a workload's answers, none of which is empty.
pub fn figures(answers: &[Answer]) -> Figures {
    let first = |a: &Answer| a.arrivals.first().map_or(Duration::ZERO, |x| x.0);
    let last = |a: &Answer| a.arrivals.last().map_or(Duration::ZERO, |x| x.0);
    let begin = answers.iter().map(first).max().unwrap_or_default();
    let end = answers.iter().map(last).min().unwrap_or_default();
    let all = answers.iter().flat_map(|a| &a.arrivals);
    let while_all: u32 = all
        .clone()
        .filter(|(at, _)| *at > begin && *at <= end)
        .map(|x| x.1)
        .sum();
    let decode_tok_s = match end.checked_sub(begin) {
        Some(interval) if !interval.is_zero() => f64::from(while_all) / interval.as_secs_f64(),
        _ => f64::NAN,
    };
    let tokens: u32 = all.map(|x| x.1).sum();
    let wall = answers.iter().map(last).max().unwrap_or_default();
    let gaps: Vec<Vec<f64>> = answers.iter().map(gaps).collect();
    let smooth: Vec<Vec<f64>> = gaps.iter().map(|g| medians_around(g)).collect();
    let jitter = gaps.iter().flatten().zip(smooth.iter().flatten());
    let jitter = sorted(jitter.map(|(gap, smooth)| gap / smooth));
    let (gaps, smooth) = (
        sorted(gaps.into_iter().flatten()),
        sorted(smooth.into_iter().flatten()),
    );
    let firsts = sorted(answers.iter().map(|a| first(a).as_secs_f64() * 1e3));
    let bits: f64 = answers.iter().map(|a| a.kv_bits).sum();
    Figures {
        decode_tok_s,
        out_tok_s: f64::from(tokens) / wall.as_secs_f64(),
        itl_p50_ms: percentile(&gaps, 0.5),
        itl_p99_ms: percentile(&gaps, 0.99),
        itl_smooth_p99_ms: percentile(&smooth, 0.99),
        itl_jitter_p99: percentile(&jitter, 0.99),
        ttft_p50_ms: percentile(&firsts, 0.5),
        mean_kv_bits: bits / answers.len() as f64,
    }
}

/// Milliseconds between an answer's tokens.
fn gaps(answer: &Answer) -> Vec<f64> {
    let between = answer.arrivals.windows(2).flat_map(|w| {
        // Tokens that were read together came evenly spaced, as far as can be told.
        let gap = (w[1].0 - w[0].0).as_secs_f64() * 1e3 / f64::from(w[1].1);
        std::iter::repeat_n(gap, w[1].1 as usize)
    });
    between.collect()
}

/// Of each value the median of the [`AROUND`] values around it, fewer at the ends.
fn medians_around(values: &[f64]) -> Vec<f64> {
    let median = |i: usize| {
        let (begin, end) = (i.saturating_sub(AROUND / 2), i + AROUND / 2 + 1);
        percentile(
            &sorted(values[begin..end.min(values.len())].iter().copied()),
            0.5,
        )
    };
    (0..values.len()).map(median).collect()
}

/// From the smallest to the largest.
pub(crate) fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// By nearest rank; NaN of nothing.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(times: &[(u64, u32)]) -> Answer {
        Answer {
            arrivals: times
                .iter()
                .map(|(ms, n)| (Duration::from_millis(*ms), *n))
                .collect(),
            kv_bits: 8.0,
        }
    }

    #[test]
    fn decoding_counts_from_the_last_first_token_to_the_first_end() {
        let a = answer(&[(10, 1), (20, 1), (30, 1), (40, 1)]);
        let b = answer(&[(20, 1), (30, 1), (40, 2), (100, 1)]);
        let f = figures(&[a, b]);
        // From 20 to 40 ms: two tokens of the one, three of the other.
        assert!((f.decode_tok_s - 5.0 / 0.02).abs() < 1e-6, "{f:?}");
        assert!((f.out_tok_s - 9.0 / 0.1).abs() < 1e-6);
        // Gaps: 10, 10, 10 and 10, 5, 5, 60.
        assert_eq!((f.itl_p50_ms, f.itl_p99_ms), (10.0, 60.0));
        assert_eq!((f.ttft_p50_ms, f.mean_kv_bits), (10.0, 8.0));
    }

    #[test]
    fn rare_long_gaps_are_left_out_of_smooth_ones_and_growth_is_not() {
        // Steps of 10 ms, later of 12; every 50th takes half as long again.
        let mut at = 0;
        let times: Vec<_> = (1..1000_u64)
            .map(|i| {
                let step = if i < 500 { 10 } else { 12 };
                at += if i % 50 == 25 { step * 3 / 2 } else { step };
                (at, 1)
            })
            .collect();
        let f = figures(&[answer(&times)]);
        assert_eq!((f.itl_p99_ms, f.itl_smooth_p99_ms), (18.0, 12.0));
        assert!((f.itl_jitter_p99 - 1.5).abs() < 1e-9, "{f:?}");
    }

    #[test]
    fn requests_that_never_decode_together_have_no_decode_rate() {
        let f = figures(&[answer(&[(10, 1), (20, 1)]), answer(&[(30, 1), (40, 1)])]);
        assert!(f.decode_tok_s.is_nan());
        assert!((f.out_tok_s - 100.0).abs() < 1e-9);
    }
}
