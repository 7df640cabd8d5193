//! How long ago the engine made a step: what a probe asks that must not wait for the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time since some moment: real, or what a test makes it.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

pub(crate) fn real_clock() -> Clock {
    let started = Instant::now();
    Arc::new(move || started.elapsed())
}

/// The time since the engine last made a step while requests wait for one.
///
/// A step that comes back counts, also one that failed, and so does a scheduler without work. A
/// full queue or a long one does not matter: as long as steps come back, the engine is well.
pub(super) struct Pulse {
    clock: Clock,
    /// When the last step was, in milliseconds.
    last: AtomicU64,
}

impl Pulse {
    pub(super) fn new(clock: Clock) -> Self {
        let last = AtomicU64::new(clock().as_millis() as u64);
        Self { clock, last }
    }

    /// A step came back, or there was nothing to do until now.
    pub(super) fn beat(&self) {
        let now = (self.clock)().as_millis() as u64;
        self.last.store(now, Ordering::Release);
    }

    /// Time since the last step, given that there is work.
    pub(super) fn age(&self) -> Duration {
        let last = Duration::from_millis(self.last.load(Ordering::Acquire));
        (self.clock)().saturating_sub(last)
    }
}
