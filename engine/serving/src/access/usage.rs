//! What a key has used: calls under way, and two buckets that leak at the rate of their limit.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Denied, KeyLimits};

/// Of one key. It outlives the key's entry when the file is read again.
#[derive(Default)]
pub(super) struct Usage(Mutex<State>);

#[derive(Default)]
struct State {
    /// As the key's line says now: calls under way follow it, too.
    limits: KeyLimits,
    running: u32,
    requests: Bucket,
    tokens: Bucket,
}

/// What was used and has not leaked away yet.
#[derive(Default)]
struct Bucket {
    used: f64,
    at: Option<Instant>,
}

impl Bucket {
    /// Lets go of what has leaked by `now`, at `limit` a minute.
    fn leak(&mut self, limit: u32, now: Instant) {
        let since = self.at.map_or(Duration::ZERO, |at| now.duration_since(at));
        self.used = (self.used - f64::from(limit) * since.as_secs_f64() / 60.0).max(0.0);
        // Threads may come with times that are a little out of order.
        self.at = self.at.max(Some(now));
    }

    /// The time until no more than `most` is left, at `limit` a minute.
    fn time_to(&self, most: f64, limit: u32) -> Option<Duration> {
        let excess = self.used - most;
        (excess > 0.0).then(|| Duration::from_secs_f64(60.0 * excess / f64::from(limit)))
    }
}

impl Usage {
    /// From now on these limits hold.
    pub(super) fn limit(&self, limits: KeyLimits) {
        self.0.lock().limits = limits;
    }

    /// Counts one more call, if all limits allow it.
    pub(super) fn begin(&self, now: Instant) -> Result<(), Denied> {
        let state = &mut *self.0.lock();
        let limits = state.limits;
        if let Some(limit) = limits.max_concurrency
            && state.running >= limit
        {
            return Err(Denied::Concurrency { limit });
        }
        if let Some(limit) = limits.tokens_per_minute {
            state.tokens.leak(limit, now);
            // One token must be left: an answer has at least one.
            if let Some(after) = state.tokens.time_to(f64::from(limit) - 1.0, limit) {
                return Err(Denied::Tokens { limit, after });
            }
        }
        if let Some(limit) = limits.requests_per_minute {
            state.requests.leak(limit, now);
            if let Some(after) = state.requests.time_to(f64::from(limit) - 1.0, limit) {
                return Err(Denied::Requests { limit, after });
            }
            state.requests.used += 1.0;
        }
        state.running += 1;
        Ok(())
    }

    /// A call that had begun is over.
    pub(super) fn end(&self) {
        let mut state = self.0.lock();
        state.running = state.running.saturating_sub(1);
    }

    /// Counts tokens.
    pub(super) fn charge(&self, tokens: usize, now: Instant) {
        let state = &mut *self.0.lock();
        if let Some(limit) = state.limits.tokens_per_minute {
            state.tokens.leak(limit, now);
            state.tokens.used += tokens as f64;
        }
    }
}
