//! The bound of the waiting queue, kept where requests come in: a refusal need not wait for the
//! step that runs.

use ebb_scheduler::QueueCapacity;
use parking_lot::Mutex;

/// Lets requests through to the engine thread while the scheduler has room for them.
pub(super) struct AdmissionGate {
    seen: Mutex<Seen>,
}

struct Seen {
    /// Requests sent to the engine thread.
    sent: Count,
    /// Of those, the ones that it had received when it last looked.
    received: Count,
    /// What the scheduler had room for then.
    room: QueueCapacity,
}

/// Requests since the start.
#[derive(Clone, Copy, Default)]
pub(super) struct Count {
    requests: u64,
    /// Their choices.
    choices: u64,
}

impl Count {
    /// One more, of `n` choices.
    pub(super) fn add(&mut self, n: u32) {
        self.requests += 1;
        self.choices += u64::from(n);
    }
}

impl AdmissionGate {
    /// A gate to a scheduler that nobody has been sent to.
    pub(super) fn new(room: QueueCapacity) -> Self {
        Self {
            seen: Mutex::new(Seen {
                sent: Count::default(),
                received: Count::default(),
                room,
            }),
        }
    }

    /// Calls `send` for a request of `n` choices; none when the scheduler has no room for it beside
    /// what is on its way there. The scheduler has the last word.
    pub(super) fn enter<E>(
        &self,
        n: u32,
        send: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let mut seen = self.seen.lock();
        let Seen {
            sent,
            received,
            room,
        } = *seen;
        let on_their_way = (sent.requests - received.requests) as usize;
        let their_choices = (sent.choices - received.choices) as usize;
        if !room.without(on_their_way, their_choices).take(n) {
            return None;
        }
        let result = send();
        if result.is_ok() {
            seen.sent.add(n);
        }
        Some(result)
    }

    /// The engine thread has received so many requests since the start, and the scheduler has this
    /// room beside them.
    pub(super) fn looked(&self, received: Count, room: QueueCapacity) {
        let mut seen = self.seen.lock();
        (seen.received, seen.room) = (received, room);
    }
}

#[cfg(test)]
mod tests {
    use ebb_block_manager::PoolConfig;
    use ebb_scheduler::{Config, Event, Request, RequestId, Scheduler};

    use super::*;

    /// A scheduler in which `running` run and `queue` may wait, and the gate to it.
    struct Pair {
        scheduler: Scheduler,
        gate: AdmissionGate,
        received: Count,
        sent: u64,
    }

    impl Pair {
        fn new(running: usize, queue: usize) -> Self {
            let config = Config {
                max_running: running,
                max_waiting: queue,
                ..Config::default()
            };
            let scheduler = Scheduler::new(config, PoolConfig::whole(1000, 4096, 1)).unwrap();
            let gate = AdmissionGate::new(scheduler.queue_capacity());
            Self {
                scheduler,
                gate,
                received: Count::default(),
                sent: 0,
            }
        }

        fn enter(&mut self, n: u32) -> bool {
            let entered = self.gate.enter(n, || Ok::<(), ()>(())).is_some();
            self.sent += u64::from(entered);
            entered
        }

        /// The scheduler hears of all that were sent, each of one choice, and plans if it is to.
        fn receive(&mut self, plans: bool) {
            for id in self.received.requests..self.sent {
                self.received.add(1);
                let request = Request::new(RequestId(id), vec![1, 2, 3], 5);
                self.scheduler.apply(Event::Arrive(request));
            }
            if plans {
                self.scheduler.plan().expect("somebody runs");
            }
            self.gate
                .looked(self.received, self.scheduler.queue_capacity());
            assert_eq!(self.scheduler.stats().requests_rejected, 0);
        }
    }

    #[test]
    fn a_burst_on_an_idle_engine_enters_as_far_as_there_are_places_and_room_to_wait() {
        for looks in [false, true] {
            let mut pair = Pair::new(3, 2);
            for _ in 0..5 {
                assert!(pair.enter(1));
                if looks {
                    pair.receive(false);
                }
            }
            assert!(!pair.enter(1));
            // Three of them run now; two wait.
            pair.receive(true);
            assert!(!pair.enter(1));
            pair.scheduler.apply(Event::Cancel(RequestId(0)));
            pair.receive(false);
            assert!(pair.enter(1) && !pair.enter(1));
        }
    }

    #[test]
    fn choices_take_a_place_each_and_one_in_the_queue() {
        let mut pair = Pair::new(4, 2);
        // Four places and two entries that wait; a queue with an entry to spare takes any request.
        assert!(pair.enter(4) && pair.enter(4) && !pair.enter(1));
        let mut pair = Pair::new(4, 2);
        assert!(pair.enter(1) && pair.enter(1) && pair.enter(1) && pair.enter(1));
        // A place in the queue is one request's, however many choices it has.
        assert!(pair.enter(3) && !pair.enter(1));
    }

    #[test]
    fn what_could_not_be_sent_takes_no_room() {
        let mut pair = Pair::new(1, 1);
        assert_eq!(pair.gate.enter(1, || Err(5)), Some(Err(5)));
        assert!(pair.enter(1) && pair.enter(1) && !pair.enter(1));
    }
}
