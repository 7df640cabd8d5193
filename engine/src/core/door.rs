//! The bound of the waiting queue, kept where requests come in: a refusal need not wait for the step that runs.

use parking_lot::Mutex;

/// Lets requests through to the engine thread while the queue has room for them.
pub(super) struct Door {
    /// Requests that may wait.
    limit: usize,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Requests sent to the engine thread.
    sent: u64,
    /// Of those, the ones that it had received when it last looked.
    received: u64,
    /// Sequences that waited then.
    waiting: usize,
}

impl Door {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            seen: Mutex::default(),
        }
    }

    /// Calls `send`; none when as many wait, or are on their way to the engine thread, as may wait.
    ///
    /// What is on its way counts as waiting until the thread has planned a step with it, as it does for the scheduler, which has
    /// the last word.
    pub(super) fn enter<E>(&self, send: impl FnOnce() -> Result<(), E>) -> Option<Result<(), E>> {
        let mut seen = self.seen.lock();
        if seen.waiting as u64 + (seen.sent - seen.received) >= self.limit as u64 {
            return None;
        }
        let sent = send();
        seen.sent += u64::from(sent.is_ok());
        Some(sent)
    }

    /// The engine thread has received so many requests since the start, and this many sequences wait after its plan.
    pub(super) fn planned(&self, received: u64, waiting: usize) {
        let mut seen = self.seen.lock();
        (seen.received, seen.waiting) = (received, waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(door: &Door) -> bool {
        door.enter(|| Ok::<(), ()>(())).is_some()
    }

    #[test]
    fn as_many_enter_as_may_wait() {
        let door = Door::new(2);
        assert_eq!(
            [enter(&door), enter(&door), enter(&door)],
            [true, true, false]
        );
        // One of them runs now, the other waits.
        door.planned(2, 1);
        assert_eq!([enter(&door), enter(&door)], [true, false]);
        door.planned(3, 0);
        assert!(enter(&door));
    }

    #[test]
    fn what_could_not_be_sent_takes_no_room() {
        let door = Door::new(1);
        assert_eq!(door.enter(|| Err(5)), Some(Err(5)));
        assert!(enter(&door) && !enter(&door));
    }
}
