//! From the answers of a trace to figures.

use std::time::Duration;

use crate::simulate::setup::Targets;
use crate::throughput::{Answer, percentile, sorted};

/// What a trace gave; times in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Requests that were answered.
    pub served: usize,
    /// Requests turned away.
    pub rejected: usize,
    /// Requests within both targets, of all.
    pub attained: f64,
    /// Time from a request's arrival to its first token, median.
    pub ttft_p50: f64,
    /// The same, 99th percentile.
    pub ttft_p99: f64,
    /// Time between two tokens of an answer, on its average; median of the answers that have two.
    pub tpot_p50: f64,
    /// The same, 99th percentile.
    pub tpot_p99: f64,
    /// Tokens of all answers over the whole time.
    pub out_tok_s: f64,
    /// Mean bits over all answers.
    pub mean_kv_bits: f64,
}

/// The figures of all requests of a trace that took so many seconds; an answer's times count from
/// its arrival.
#[must_use]
pub fn figures(answers: &[Option<Answer>], targets: Targets, seconds: f64) -> Figures {
    let served: Vec<&Answer> = answers.iter().flatten().collect();
    let (mut ttft, mut tpot, mut good) = (Vec::new(), Vec::new(), 0_usize);
    for answer in &served {
        let first = answer.arrivals.first().map_or(Duration::MAX, |a| a.0);
        let last = answer.arrivals.last().map_or(Duration::MAX, |a| a.0);
        let gaps = tokens(answer).saturating_sub(1);
        let to_first = first.as_secs_f64();
        let between = (gaps > 0).then(|| (last - first).as_secs_f64() / gaps as f64);
        good += usize::from(to_first <= targets.ttft && between.is_none_or(|t| t <= targets.tpot));
        ttft.push(to_first);
        tpot.extend(between);
    }
    let (ttft, tpot) = (sorted(ttft.into_iter()), sorted(tpot.into_iter()));
    let all: u64 = served.iter().map(|a| tokens(a)).sum();
    let bits: f64 = served.iter().map(|a| a.kv_bits).sum();
    Figures {
        served: served.len(),
        rejected: answers.len() - served.len(),
        attained: good as f64 / answers.len().max(1) as f64,
        ttft_p50: percentile(&ttft, 0.5),
        ttft_p99: percentile(&ttft, 0.99),
        tpot_p50: percentile(&tpot, 0.5),
        tpot_p99: percentile(&tpot, 0.99),
        out_tok_s: all as f64 / seconds,
        mean_kv_bits: bits / served.len() as f64,
    }
}

fn tokens(answer: &Answer) -> u64 {
    answer.arrivals.iter().map(|a| u64::from(a.1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_meets_both_targets_counts() {
        let answer = |first_ms: u64, gap_ms: u64, tokens: u64| {
            let at = |i| (Duration::from_millis(first_ms + i * gap_ms), 1);
            Some(Answer {
                arrivals: (0..tokens).map(at).collect(),
                kv_bits: 8.0,
            })
        };
        let targets = Targets {
            ttft: 1.0,
            tpot: 0.05,
        };
        let answers = [
            answer(1000, 50, 3),
            answer(1001, 50, 3),
            answer(10, 51, 3),
            // It has no second token to wait for.
            answer(20, 0, 1),
            None,
        ];
        let f = figures(&answers, targets, 2.0);
        assert_eq!((f.served, f.rejected, f.attained), (4, 1, 0.4));
        assert_eq!((f.ttft_p50, f.ttft_p99), (0.02, 1.001));
        assert_eq!((f.tpot_p50, f.tpot_p99), (0.05, 0.051));
        assert_eq!((f.out_tok_s, f.mean_kv_bits), (5.0, 8.0));
    }
}
