//! From records to figures.

mod during_prefill;
mod quantiles;
mod table;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use quantiles::Quantiles;
pub(crate) use quantiles::histogram;
pub use table::table;
pub(crate) use table::{aligned, number};

use crate::drive::{Span, Stage};
use crate::protocol::Target;
use crate::record::{CANCELLED, Class, Record};

/// A latency target: an answer is good when both hold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, clap::Args)]
#[command(next_help_heading = "Target latencies")]
pub struct Slo {
    /// Milliseconds to the first token of a good answer, at most
    #[arg(long = "slo-ttft-ms", value_name = "MS", default_value_t = 2000.0)]
    pub ttft_ms: f64,
    /// Milliseconds between tokens of a good answer, at most, on its mean
    #[arg(long = "slo-itl-ms", value_name = "MS", default_value_t = 100.0)]
    pub itl_ms: f64,
}

impl Slo {
    /// Whether an answer that was complete came in time.
    pub fn met(&self, record: &Record) -> bool {
        let ttft = record
            .ttft_us()
            .is_some_and(|us| us as f64 <= self.ttft_ms * 1e3);
        ttft && record.tpot_us().is_none_or(|us| us <= self.itl_ms * 1e3)
    }
}

/// A test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// For people.
    pub title: String,
    /// Version of ebb-load.
    pub version: String,
    /// How it was called.
    pub command: String,
    /// When it began: RFC 3339, UTC.
    pub started: String,
    /// What was loaded.
    pub target: Target,
    /// What a good answer is.
    pub slo: Slo,
    /// In order.
    pub stages: Vec<Figures>,
}

/// The figures of one stage. Latencies are those of steady requests that were answered in full, and
/// of no others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// As in tables.
    pub label: String,
    /// Clients, or sessions a second.
    pub load: f64,
    /// When it was, in seconds since the test began.
    pub begin_s: f64,
    /// From its beginning to its last answer, in seconds. Rates are over this.
    pub seconds: f64,
    /// Whether the test's time or the user ended it before all was sent.
    pub cut_short: bool,
    /// Sessions that do not fit the server's context, and were left out.
    pub unfit: u64,
    /// Requests.
    pub requests: u64,
    /// Requests by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// The same by class.
    pub classes: BTreeMap<String, BTreeMap<String, u64>>,
    /// Share of the requests that failed: all but those answered in full or cancelled by their
    /// client.
    pub failed_share: f64,
    /// Requests answered in full, a second.
    pub requests_per_second: f64,
    /// Tokens of the prompts of requests that were answered, at least in part, a second.
    pub input_tokens_per_second: f64,
    /// Share of those tokens that came out of the prefix cache.
    pub cached_share: f64,
    /// Tokens received, a second.
    pub output_tokens_per_second: f64,
    /// Time to the first token.
    pub ttft_ms: Option<Quantiles>,
    /// Time between tokens.
    pub itl_ms: Option<Quantiles>,
    /// The same of tokens between which another request's first token came: the server was reading
    /// a prompt.
    pub itl_during_prefill_ms: Option<Quantiles>,
    /// Time per output token: an answer's mean time between tokens.
    pub tpot_ms: Option<Quantiles>,
    /// Time to the end.
    pub e2e_ms: Option<Quantiles>,
    /// From the intended time to the answer of those that were refused with RESOURCE_EXHAUSTED.
    pub refusal_ms: Option<Quantiles>,
    /// How late requests were sent, for want of a place in flight or of the load generator's
    /// attention.
    pub send_delay_ms: Option<Quantiles>,
    /// Answers within the target, a second.
    pub goodput: f64,
    /// Their tokens, a second.
    pub good_tokens_per_second: f64,
    /// Share of the steady requests whose answers were within the target.
    pub good_share: f64,
    /// Lowest nominal bits of any key or value that an answer was computed from.
    pub lowest_kv_bits: Option<u32>,
    /// Mean bits of keys and values that answers were computed from, weighted by their tokens.
    pub mean_kv_bits: Option<f64>,
}

impl Figures {
    /// Of a stage's records.
    pub fn of(stage: &Stage, span: &Span, records: &[&Record], slo: &Slo) -> Self {
        let mut outcomes = BTreeMap::new();
        let mut classes: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for record in records {
            *outcomes.entry(record.outcome.clone()).or_default() += 1;
            let class = classes.entry(record.class.name().to_owned()).or_default();
            *class.entry(record.outcome.clone()).or_default() += 1;
        }
        let last = records.iter().map(|r| r.end_us).max();
        let end = last.unwrap_or(span.end_us).max(span.begin_us + 1);
        let seconds = (end - span.begin_us) as f64 / 1e6;
        let ok: Vec<&Record> = records.iter().copied().filter(|r| r.ok()).collect();
        let steady = |r: &&Record| r.class == Class::Steady;
        let timed: Vec<&Record> = ok.iter().copied().filter(steady).collect();
        let good: Vec<&Record> = timed.iter().copied().filter(|r| slo.met(r)).collect();
        let well = |r: &&&Record| r.ok() || r.outcome == CANCELLED;
        let answered = || records.iter().filter(|r| !r.arrivals_us.is_empty());
        let input: u64 = answered().map(|r| u64::from(r.prompt_tokens)).sum();
        let cached: u64 = answered().map(|r| u64::from(r.cached_tokens)).sum();
        let tokens =
            |of: &[&Record]| of.iter().map(|r| u64::from(r.output_tokens())).sum::<u64>() as f64;
        let gaps = timed.iter().flat_map(|r| r.gaps_us());
        let refused = records.iter().filter(|r| r.outcome == "RESOURCE_EXHAUSTED");
        let (bits, weight) = ok.iter().fold((0.0, 0.0), |(sum, weight), r| {
            let tokens = f64::from(r.output_tokens());
            r.mean_kv_bits.map_or((sum, weight), |bits| {
                (sum + f64::from(bits) * tokens, weight + tokens)
            })
        });
        let share = |part: usize, of: usize| {
            if of == 0 {
                0.0
            } else {
                part as f64 / of as f64
            }
        };
        Self {
            label: stage.label.clone(),
            load: stage.load,
            begin_s: span.begin_us as f64 / 1e6,
            seconds,
            cut_short: span.cut_short,
            unfit: span.unfit,
            requests: records.len() as u64,
            outcomes,
            classes,
            failed_share: share(
                records.len() - records.iter().filter(well).count(),
                records.len(),
            ),
            requests_per_second: ok.len() as f64 / seconds,
            input_tokens_per_second: input as f64 / seconds,
            cached_share: if input == 0 {
                0.0
            } else {
                cached as f64 / input as f64
            },
            output_tokens_per_second: tokens(records) / seconds,
            ttft_ms: Quantiles::of(
                timed
                    .iter()
                    .filter_map(|r| r.ttft_us())
                    .map(|us| (us as f64, 1)),
            ),
            itl_ms: Quantiles::of(gaps.map(|(from, to, n)| ((to - from) as f64 / f64::from(n), n))),
            itl_during_prefill_ms: during_prefill::quantiles(&timed, records),
            tpot_ms: Quantiles::of(timed.iter().filter_map(|r| r.tpot_us()).map(|us| (us, 1))),
            e2e_ms: Quantiles::of(timed.iter().map(|r| (r.e2e_us() as f64, 1))),
            refusal_ms: Quantiles::of(refused.map(|r| (r.e2e_us() as f64, 1))),
            send_delay_ms: Quantiles::of(
                records
                    .iter()
                    .map(|r| (r.sent_us.saturating_sub(r.intended_us) as f64, 1)),
            ),
            goodput: good.len() as f64 / seconds,
            good_tokens_per_second: tokens(&good) / seconds,
            good_share: share(
                good.len(),
                records.iter().copied().filter(|r| steady(r)).count(),
            ),
            lowest_kv_bits: ok.iter().filter_map(|r| r.lowest_kv_bits).min(),
            mean_kv_bits: (weight > 0.0).then(|| bits / weight),
        }
    }
}

#[cfg(test)]
mod tests;
