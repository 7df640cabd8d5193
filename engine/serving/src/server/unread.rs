//! Large parts of answers that a connection's client has not read, and when its time for them ends.
//!
//! Streams of Generate are ended when their client stalls (`responses`), and hold little; a whole
//! answer such as Detokenize's is in HTTP/2's hands, where nothing but its connection can be ended.
//! Over HTTP/1 a connection has one answer at a time, and whoever does not read that is given up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Smaller parts cost little.
const LARGE_BYTES: usize = 64 * 1024;
/// A client that reads slower than this for as long is given up.
const BYTES_PER_SECOND: usize = 64 * 1024;

/// The large parts of one connection's answers.
#[derive(Clone)]
pub(super) struct Unread {
    state: Arc<Mutex<State>>,
    /// What every part gets beside the time to transfer it.
    time: Duration,
    /// Smaller parts are not followed.
    least_bytes: usize,
}

#[derive(Default)]
struct State {
    next: u64,
    due: BTreeMap<u64, Instant>,
}

impl Unread {
    /// Follows what costs memory while it is not read.
    pub(super) fn of_large_parts(time: Duration) -> Self {
        Self {
            state: Arc::default(),
            time,
            least_bytes: LARGE_BYTES,
        }
    }

    /// Follows everything.
    pub(super) fn of_all_parts(time: Duration) -> Self {
        Self {
            least_bytes: 0,
            ..Self::of_large_parts(time)
        }
    }

    /// A part of so many bytes is handed to HTTP/2; it is unread until the result is dropped.
    pub(super) fn add(&self, bytes: usize, now: Instant) -> Option<Part> {
        if bytes < self.least_bytes {
            return None;
        }
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        let transfer = Duration::from_secs((bytes / BYTES_PER_SECOND) as u64);
        state.due.insert(id, now + self.time + transfer);
        Some(Part {
            state: self.state.clone(),
            id,
        })
    }

    /// Whether the time for some part is over.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.state.lock().due.values().any(|&due| due <= now)
    }

    /// Resolves when that is so.
    pub(super) async fn overdue(&self) {
        let pause = (self.time / 4).min(Duration::from_secs(5));
        while !self.is_overdue(Instant::now()) {
            tokio::time::sleep(pause).await;
        }
    }
}

/// A large part of an answer.
pub(super) struct Part {
    state: Arc<Mutex<State>>,
    id: u64,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.state.lock().due.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_parts_have_their_time_and_what_they_take_to_transfer() {
        let (unread, now) = (
            Unread::of_large_parts(Duration::from_secs(10)),
            Instant::now(),
        );
        assert!(unread.add(1000, now).is_none());
        let after = |seconds| unread.is_overdue(now + Duration::from_secs(seconds));
        let small = unread.add(LARGE_BYTES, now);
        let large = unread.add(100 * LARGE_BYTES, now);
        assert!(!after(10) && after(11));
        drop(small);
        assert!(!after(109) && after(110));
        drop(large);
        assert!(!after(1000));
    }
}
