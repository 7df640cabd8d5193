//! Log lines that clients can cause: at most one in ten seconds, which says how many were left out.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PERIOD: Duration = Duration::from_secs(10);

/// Says when a line of one kind may be written.
#[derive(Default)]
pub(super) struct LogThrottle(Mutex<State>);

#[derive(Default)]
struct State {
    next: Option<Instant>,
    left_out: u64,
}

impl LogThrottle {
    /// How many lines were left out since the last one; none when this one is to be left out, too.
    pub(super) fn turn(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.next.is_some_and(|next| now < next) {
            state.left_out += 1;
            return None;
        }
        state.next = Some(now + PERIOD);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_and_a_count() {
        let (lines, now) = (LogThrottle::default(), Instant::now());
        assert_eq!(lines.turn(now), Some(0));
        for _ in 0..1000 {
            assert_eq!(lines.turn(now + PERIOD / 2), None);
        }
        assert_eq!(lines.turn(now + PERIOD), Some(1000));
    }
}
