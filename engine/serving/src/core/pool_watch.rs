//! Looks at the KV pool, made by the engine thread when somebody asks for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::EngineState;
use crate::kv_pool::KvPool;

/// A younger look serves for another caller, too: so many callers cost the engine thread no more
/// than ten looks a second.
const RECENT: Duration = Duration::from_millis(100);
/// How long a caller waits for a step to end before it gets the last look.
const STEP_WAIT: Duration = Duration::from_secs(2);

/// The engine and its pool at one moment, between two steps.
#[derive(Debug, Clone)]
pub struct PoolLook {
    /// When that was.
    pub at: Instant,
    /// The engine's numbers.
    pub state: EngineState,
    /// Who holds how much of the pool.
    pub pool: KvPool,
}

/// Where callers ask and the engine thread answers.
pub(super) struct PoolWatch {
    is_wanted: AtomicBool,
    last: watch::Sender<Arc<PoolLook>>,
}

impl PoolWatch {
    pub(super) fn new(first: PoolLook) -> Self {
        Self {
            is_wanted: AtomicBool::new(false),
            last: watch::Sender::new(Arc::new(first)),
        }
    }

    /// Whether somebody has asked since the last call. Asked between steps: while nobody looks,
    /// this load is all that looks cost.
    pub(super) fn take_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed) && self.is_wanted.swap(false, Ordering::AcqRel)
    }

    pub(super) fn show(&self, look: PoolLook) {
        self.last.send_replace(Arc::new(look));
    }

    /// A look that is recent, or the last one where no step ends soon. `wake` makes the engine
    /// thread pass between two steps, and is called by one caller at a time.
    pub(super) async fn look(&self, wake: impl FnOnce()) -> Arc<PoolLook> {
        let mut looks = self.last.subscribe();
        let last = looks.borrow_and_update().clone();
        if last.at.elapsed() < RECENT {
            return last;
        }
        if !self.is_wanted.swap(true, Ordering::AcqRel) {
            wake();
        }
        let _ = tokio::time::timeout(STEP_WAIT, looks.changed()).await;
        looks.borrow().clone()
    }
}
