//! What is known of one request.

use serde::{Deserialize, Serialize};

/// How the client of a request behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Reads the whole answer at once. Latencies and goodput are of these alone.
    Steady,
    /// Cancels in the middle.
    Cancel,
    /// Pauses before each piece.
    Slow,
}

impl Class {
    /// As in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Cancel => "cancel",
            Self::Slow => "slow",
        }
    }
}

/// The outcome of a request that was answered in full.
pub const OK: &str = "OK";
/// ... that its client cancelled, as planned.
pub const CANCELLED: &str = "CANCELLED_BY_CLIENT";
/// ... that had not ended when the test did.
pub const UNFINISHED: &str = "UNFINISHED";
/// ... whose stream ended without an end, or whose tokens are not those that the server counted.
pub const INCOMPLETE: &str = "INCOMPLETE";

/// One request. All times are microseconds since the test began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Index of its stage.
    pub stage: usize,
    /// Its session, and its turn in that, from 0.
    pub session: u64,
    /// See session.
    pub turn: u32,
    /// How its client behaves.
    pub class: Class,
    /// [`OK`], [`CANCELLED`], [`UNFINISHED`], [`INCOMPLETE`], or the name of the server's status.
    pub outcome: String,
    /// What the server said, where it is not OK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was to be sent. Latencies count from here.
    pub intended_us: u64,
    /// When it was sent.
    pub sent_us: u64,
    /// When its end was known.
    pub end_us: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Those that the server had in its prefix cache.
    pub cached_tokens: u32,
    /// Tokens asked for.
    pub max_tokens: u32,
    /// When tokens came, and how many together.
    pub arrivals_us: Vec<(u64, u32)>,
    /// Lowest nominal bits of any key or value that the answer was computed from.
    pub lowest_kv_bits: Option<u32>,
    /// Mean bits of the keys and values that the answer was computed from.
    pub mean_kv_bits: Option<f32>,
}

impl Record {
    /// Whether it was answered in full.
    pub fn ok(&self) -> bool {
        self.outcome == OK
    }

    /// Tokens received.
    pub fn output_tokens(&self) -> u32 {
        self.arrivals_us.iter().map(|(_, tokens)| tokens).sum()
    }

    /// Time to the first token.
    pub fn ttft_us(&self) -> Option<u64> {
        Some(self.first_us()?.saturating_sub(self.intended_us))
    }

    /// When the first token came.
    pub fn first_us(&self) -> Option<u64> {
        self.arrivals_us.first().map(|(at, _)| *at)
    }

    /// Mean time between tokens after the first ones; none of an answer that came in one piece.
    pub fn tpot_us(&self) -> Option<f64> {
        let ((first, head), (last, _)) = (self.arrivals_us.first()?, self.arrivals_us.last()?);
        let more = self.output_tokens() - head;
        (more > 0).then(|| (last - first) as f64 / f64::from(more))
    }

    /// Time to the end, whatever that was.
    pub fn e2e_us(&self) -> u64 {
        self.end_us.saturating_sub(self.intended_us)
    }

    /// Times between tokens: from, to, and the tokens that came at the end of it together, each of
    /// which counts as an equal share.
    pub fn gaps_us(&self) -> impl Iterator<Item = (u64, u64, u32)> + '_ {
        let pairs = self.arrivals_us.windows(2);
        pairs.map(|pair| (pair[0].0, pair[1].0, pair[1].1))
    }
}

/// A record with its latencies, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    #[serde(flatten)]
    record: &'a Record,
    output_tokens: u32,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    e2e_ms: f64,
}

impl<'a> From<&'a Record> for Line<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            record,
            output_tokens: record.output_tokens(),
            ttft_ms: record.ttft_us().map(|us| us as f64 / 1e3),
            tpot_ms: record.tpot_us().map(|us| us / 1e3),
            e2e_ms: record.e2e_us() as f64 / 1e3,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An answer in pieces of one token at these milliseconds; intended and sent at the first.
    pub(crate) fn record(intended_ms: u64, arrivals_ms: &[u64]) -> Record {
        Record {
            stage: 0,
            session: 0,
            turn: 0,
            class: Class::Steady,
            outcome: OK.into(),
            message: None,
            intended_us: intended_ms * 1000,
            sent_us: intended_ms * 1000,
            end_us: arrivals_ms.last().unwrap_or(&intended_ms) * 1000,
            prompt_tokens: 10,
            cached_tokens: 0,
            max_tokens: arrivals_ms.len() as u32,
            arrivals_us: arrivals_ms.iter().map(|ms| (ms * 1000, 1)).collect(),
            lowest_kv_bits: Some(16),
            mean_kv_bits: Some(16.0),
        }
    }

    #[test]
    fn latencies_count_from_the_intended_time() {
        let mut late = record(100, &[150, 160, 190]);
        late.sent_us = 149_000;
        assert_eq!(late.ttft_us(), Some(50_000));
        assert_eq!(late.tpot_us(), Some(20_000.0));
        assert_eq!(late.e2e_us(), 90_000);
        late.arrivals_us[0].1 = 5;
        assert_eq!((late.output_tokens(), late.tpot_us()), (7, Some(20_000.0)));
    }

    #[test]
    fn an_answer_in_one_piece_has_no_time_between_tokens() {
        let one = record(0, &[5]);
        assert_eq!((one.tpot_us(), one.gaps_us().count()), (None, 0));
        assert_eq!(record(0, &[]).ttft_us(), None);
    }

    #[test]
    fn lines_are_records_with_latencies() {
        let line = serde_json::to_value(Line::from(&record(0, &[5, 9]))).unwrap();
        assert_eq!(line["ttft_ms"], 5.0);
        assert_eq!(
            line["arrivals_us"],
            serde_json::json!([[5000, 1], [9000, 1]])
        );
        let back: Record = serde_json::from_value(line).unwrap();
        assert_eq!(back, record(0, &[5, 9]));
    }
}
