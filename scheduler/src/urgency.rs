//! The order in which requests are served.

/// Order of service: lower goes first.
///
/// A request of priority `p` that arrives at step `s` counts as if it had arrived at step `s + p *
/// aging_steps` with priority 0. All requests age at the same rate, so their order does not change
/// while they wait, and the key is fixed on arrival.
///
/// So a request of priority `p` is overtaken by one of priority `q < p` only if that one arrives
/// less than `(p - q) * aging_steps` steps later, and never by one of its own or a lower priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Urgency {
    virtual_start: i64,
    arrival: u64,
    choice: u32,
}

impl Urgency {
    /// `step`: steps planned before the arrival. `arrival`: arrivals before this one.
    pub(crate) fn new(priority: i32, aging_steps: u32, step: u64, arrival: u64) -> Self {
        // |priority| <= 2^31 and aging_steps <= 2^24 (validated): far from the ends of an i64.
        let virtual_start = i64::from(priority) * i64::from(aging_steps) + step as i64;
        Self {
            virtual_start,
            arrival,
            choice: 0,
        }
    }

    /// The same, but as if it had arrived at `step`. No more urgent than before.
    pub(crate) fn as_if_arrived(self, priority: i32, aging_steps: u32, step: u64) -> Self {
        let Self {
            arrival, choice, ..
        } = self;
        let later = Self::new(priority, aging_steps, step, arrival);
        later.for_choice(choice).max(self)
    }

    /// The same for another choice of the request.
    pub(crate) fn for_choice(self, choice: u32) -> Self {
        Self { choice, ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn overtaking_is_bounded(
            p in -50i32..50, q in -50i32..50, aging in 0u32..1000,
            step in 0u64..100_000, later in 0u64..100_000,
        ) {
            let first = Urgency::new(p, aging, step, 0);
            let second = Urgency::new(q, aging, step + later, 1);
            let window = (i64::from(p) - i64::from(q)) * i64::from(aging);
            prop_assert_eq!(second < first, (later as i64) < window);
        }
    }

    #[test]
    fn extreme_priorities_do_not_overflow() {
        let most = Urgency::new(i32::MIN, 1 << 24, 0, 0);
        let least = Urgency::new(i32::MAX, 1 << 24, 1 << 60, 1);
        assert!(most < least);
    }

    #[test]
    fn choices_stay_together() {
        let a = Urgency::new(0, 10, 5, 1);
        let b = Urgency::new(0, 10, 5, 2);
        assert!(a < a.for_choice(1) && a.for_choice(7) < b);
    }
}
