//! How long ago the engine made a step: what a probe asks that must not wait for the engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time since the engine last made a step while requests wait for one.
///
/// A step that comes back counts, also one that failed, and so does a scheduler without work. A
/// full queue or a long one does not matter: as long as steps come back, the engine is well.
#[derive(Debug)]
pub(super) struct Pulse {
    started: Instant,
    /// Milliseconds from `started` to the last step.
    last: AtomicU64,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// A step came back, or there was nothing to do until now.
    pub(super) fn beat(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.last.store(now, Ordering::Release);
    }

    /// Time since the last step, given that there is work.
    pub(super) fn age(&self) -> Duration {
        let last = Duration::from_millis(self.last.load(Ordering::Acquire));
        self.started.elapsed().saturating_sub(last)
    }
}
