//! Asking again: how often, and after what wait.

use std::time::Duration;

use super::settings::Patience;

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// A status that is no success.
    Status {
        status: u16,
        /// The hub's word for it, such as `GatedRepo`.
        code: String,
        /// Seconds that it asks to wait.
        retry_after: Option<u64>,
    },
    /// The connection, or a wait for it: another attempt may go better. `host` was asked.
    Cut { host: String, problem: String },
    /// What no further attempt changes: no such host, no trust.
    Network { host: String, problem: String },
    /// An answer that is not what it has to be.
    Answer { host: String, problem: String },
}

/// Counts attempts in a row that bring nothing.
pub(super) struct Retries<'a> {
    patience: &'a Patience,
    failed: u32,
    /// Bytes up to which attempts have come.
    reached: u64,
}

impl<'a> Retries<'a> {
    pub(super) fn new(patience: &'a Patience) -> Self {
        Self {
            patience,
            failed: 0,
            reached: 0,
        }
    }

    /// The file is here up to `bytes`. Where that is well beyond any attempt before, failures
    /// before it do not count; what is sent over and over does not bring them back.
    pub(super) fn reached(&mut self, bytes: u64) {
        if bytes >= self.reached.saturating_add(Patience::SLOW_BYTES) {
            self.reached = bytes;
            self.failed = 0;
        }
    }

    /// Waits before the next attempt at `what`.
    ///
    /// # Errors
    /// Gives `failure` back where another attempt is of no use, or one too many.
    pub(super) fn wait(&mut self, failure: Failure, what: &str) -> Result<(), Failure> {
        self.failed += 1;
        let doubled = self.patience.wait * 2u32.saturating_pow(self.failed.min(6) - 1);
        let wait = match &failure {
            Failure::Status {
                status: 429 | 503,
                retry_after: Some(seconds),
                ..
            } => Duration::from_secs(*seconds),
            Failure::Status {
                status: 408 | 429 | 500..,
                ..
            }
            | Failure::Cut { .. } => doubled,
            _ => return Err(failure),
        };
        if self.failed >= self.patience.attempts || wait > self.patience.retry_after_max {
            return Err(failure);
        }
        let why = match &failure {
            Failure::Status { status, .. } => format!("the hub answered {status}"),
            Failure::Cut { problem, .. }
            | Failure::Network { problem, .. }
            | Failure::Answer { problem, .. } => problem.clone(),
        };
        let seconds = wait.as_secs_f32();
        tracing::warn!("{what}: {why}; asking again in {seconds:.0} s");
        std::thread::sleep(wait);
        Ok(())
    }
}
