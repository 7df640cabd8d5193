//! What is going on, for people who watch.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;

use crate::record::Record;
use crate::summary::histogram;

/// Counters of the stage that runs.
#[derive(Debug)]
pub struct Live {
    sent: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    tokens: AtomicU64,
    ttft_us: Mutex<Histogram<u64>>,
}

/// What the counters stood at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Requests at the server.
    pub in_flight: u64,
    /// Requests that ended as they were to.
    pub done: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Tokens received.
    pub tokens: u64,
    /// Median time to the first token.
    pub ttft_p50_us: u64,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            sent: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            ttft_us: Mutex::new(histogram()),
        }
    }
}

impl Live {
    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn received(&self, tokens: usize) {
        self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, record: &Record, well: bool) {
        let counter = if well { &self.done } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        if let (Some(ttft), Ok(mut histogram)) = (record.ttft_us(), self.ttft_us.lock()) {
            histogram.saturating_record(ttft);
        }
    }

    /// Forgets the stage before.
    pub fn reset(&self) {
        for counter in [&self.sent, &self.done, &self.failed, &self.tokens] {
            counter.store(0, Ordering::Relaxed);
        }
        if let Ok(mut histogram) = self.ttft_us.lock() {
            histogram.reset();
        }
    }

    /// The counters now.
    pub fn seen(&self) -> Seen {
        let [sent, done, failed, tokens] =
            [&self.sent, &self.done, &self.failed, &self.tokens].map(|c| c.load(Ordering::Relaxed));
        let ttft = self.ttft_us.lock();
        Seen {
            in_flight: sent.saturating_sub(done + failed),
            done,
            failed,
            tokens,
            ttft_p50_us: ttft.map_or(0, |h| h.value_at_quantile(0.5)),
        }
    }
}
