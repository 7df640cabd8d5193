//! Who is tokenised next: a bounded queue in front of a few threads.
//!
//! Short texts go before long ones, but every [`OLDEST_EVERY`]th turn is the oldest job's, so that
//! nobody waits for ever; and long ones never take the last thread, so that a short one need not
//! wait for any of them to end. A job whose caller is gone leaves the queue, or, if it runs, is
//! asked to stop. A job that clients' memory has no room for waits for those that run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ebb_models::spawn_with_known_stack;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::RequestError;
use crate::client_memory::{ClientMemory, Held};

/// Jobs that may wait.
const WAITING_MAX: usize = 4096;
/// Texts up to this size are short.
const SHORT_BYTES: usize = 16 * 1024;
/// Every so many turns the oldest job is taken, however long it is.
const OLDEST_EVERY: u64 = 8;

/// The queue and its threads, which end when it is dropped.
pub(super) struct TextQueue {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// A job came, or one ended.
    changed: Condvar,
    memory: ClientMemory,
    threads: usize,
}

#[derive(Default)]
struct State {
    /// In the order in which they came.
    jobs: VecDeque<Job>,
    next_id: u64,
    turns: u64,
    running_long: usize,
    closed: bool,
}

struct Job {
    id: u64,
    /// Bytes of text: how long it will take.
    size: usize,
    /// Bytes of memory that it will take.
    work: usize,
    run: Box<dyn FnOnce(Result<Held, RequestError>) + Send>,
}

impl Job {
    /// Its size class: four times as many bytes are one class more.
    fn class(&self) -> u32 {
        let units = self.size / SHORT_BYTES;
        (usize::BITS - units.leading_zeros()).div_ceil(2)
    }

    fn is_long(&self) -> bool {
        self.size > SHORT_BYTES
    }
}

/// Tells a running job that nobody wants its result.
#[derive(Clone)]
pub(super) struct Wanted(Arc<AtomicBool>);

impl Wanted {
    /// For a caller who waits.
    pub(super) fn always() -> Self {
        Self(Arc::default())
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The caller's end; dropping it before the result is there calls the job off.
struct Caller {
    shared: Arc<Shared>,
    id: u64,
    over: Arc<AtomicBool>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let mut state = self.shared.state.lock();
        let job = state.jobs.iter().position(|job| job.id == self.id);
        let job = job.and_then(|at| state.jobs.remove(at));
        drop(state);
        // With the text, which may be long: not under the lock.
        drop(job);
    }
}

impl TextQueue {
    /// A queue with so many threads, at least two: one is for short texts alone.
    pub(super) fn new(threads: usize, memory: ClientMemory) -> Self {
        let threads = threads.max(2);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            memory,
            threads,
        });
        for i in 0..threads {
            let shared = shared.clone();
            spawn_with_known_stack(format!("ebb-text-{i}"), move || shared.work())
                .expect("the operating system gives the process a few more threads");
        }
        Self { shared }
    }

    /// Runs `run` on a thread of the queue, when its turn comes, for a text of `size` bytes whose
    /// work takes `work` bytes of memory.
    ///
    /// # Errors
    /// What `run` says; [`RequestError::TextQueueFull`]; [`RequestError::ClientMemory`] when the
    /// work is more than clients may make the server hold, or others hold too much.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        size: usize,
        work: usize,
        run: impl FnOnce(&mut Held, &Wanted) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let (sender, result) = oneshot::channel();
        let over = Arc::new(AtomicBool::new(false));
        let wanted = Wanted(over.clone());
        let run = Box::new(move |held: Result<Held, RequestError>| {
            let _ = sender.send(held.and_then(|mut held| run(&mut held, &wanted)));
        });
        let _caller = self.enqueue((size, work), over, run)?;
        let failed = |_| RequestError::Internal("tokenising failed".into());
        result.await.map_err(failed)?
    }

    fn enqueue(
        &self,
        (size, work): (usize, usize),
        over: Arc<AtomicBool>,
        run: Box<dyn FnOnce(Result<Held, RequestError>) + Send>,
    ) -> Result<Caller, RequestError> {
        let mut state = self.shared.state.lock();
        if state.jobs.len() >= WAITING_MAX {
            return Err(RequestError::TextQueueFull { limit: WAITING_MAX });
        }
        let id = state.next_id;
        state.next_id += 1;
        state.jobs.push_back(Job {
            id,
            size,
            work,
            run,
        });
        drop(state);
        self.shared.changed.notify_all();
        Ok(Caller {
            shared: self.shared.clone(),
            id,
            over,
        })
    }

    /// Jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        self.shared.state.lock().jobs.len()
    }
}

impl Drop for TextQueue {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Where the next job is, if one may run now.
    fn next(&self, state: &State) -> Option<usize> {
        let may_run = |job: &Job| {
            // The last thread is for short ones.
            let thread = state.running_long + 1 < self.threads;
            // Long ones that run give memory back; if none does, waiting is useless.
            let memory = || state.running_long == 0 || self.memory.has_room(job.work);
            !job.is_long() || (thread && memory())
        };
        let mut jobs = state.jobs.iter().enumerate().filter(|(_, j)| may_run(j));
        let next = if state.turns.is_multiple_of(OLDEST_EVERY) {
            jobs.next()
        } else {
            jobs.min_by_key(|(_, job)| (job.class(), job.id))
        };
        next.map(|(at, _)| at)
    }

    /// A thread's life.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return;
            }
            let Some(at) = self.next(&state) else {
                self.changed.wait(&mut state);
                continue;
            };
            let Some(job) = state.jobs.remove(at) else {
                continue;
            };
            let held = self.memory.hold(job.work);
            let long = usize::from(job.is_long());
            state.turns += 1;
            state.running_long += long;
            drop(state);
            let run = std::panic::AssertUnwindSafe(|| (job.run)(held.map_err(Into::into)));
            if std::panic::catch_unwind(run).is_err() {
                // The caller hears that its channel closed.
                tracing::error!("tokenising failed because of a bug in the server");
            }
            state = self.state.lock();
            state.running_long -= long;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: usize = 1 << 20;

    /// A queue, and where its jobs write their names.
    fn queue(memory: ClientMemory) -> (Arc<TextQueue>, Arc<Mutex<Vec<&'static str>>>) {
        (Arc::new(TextQueue::new(2, memory)), Arc::default())
    }

    /// Polls until `holds` does; fails after five seconds.
    async fn eventually(what: &str, holds: impl Fn() -> bool) {
        for _ in 0..1000 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("not within five seconds: {what}");
    }

    /// Puts a job into the queue that runs until it is called off or `until` says so.
    fn job(
        queue: &Arc<TextQueue>,
        (size, work): (usize, usize),
        until: impl Fn() -> bool + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<bool, RequestError>> {
        let queue = queue.clone();
        tokio::spawn(async move {
            let run = move |_: &mut Held, wanted: &Wanted| {
                while !wanted.is_over() && !until() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(wanted.is_over())
            };
            queue.run(size, work, run).await
        })
    }

    #[tokio::test]
    async fn a_short_text_waits_for_no_long_one() {
        let (queue, _) = queue(ClientMemory::unlimited());
        let long: Vec<_> = (0..100).map(|_| job(&queue, (LONG, 0), || false)).collect();
        eventually("one long text runs, the others wait", || {
            queue.waiting() == 99
        })
        .await;
        for _ in 0..50 {
            let short = job(&queue, (10, 0), || true);
            let done = tokio::time::timeout(Duration::from_secs(2), short).await;
            assert!(matches!(done, Ok(Ok(Ok(false)))));
        }
        // Their callers go: nothing of them is left, whether it waited or ran.
        for call in long {
            call.abort();
        }
        eventually("the queue is empty", || {
            queue.waiting() == 0 && queue.shared.state.lock().running_long == 0
        })
        .await;
    }

    #[tokio::test]
    async fn shorter_ones_go_first_and_the_oldest_gets_its_turn() {
        let (queue, order) = queue(ClientMemory::unlimited());
        let go = Arc::new(AtomicBool::new(false));
        let gate = go.clone();
        let first = job(&queue, (LONG, 0), move || gate.load(Ordering::Relaxed));
        eventually("it runs", || queue.shared.state.lock().running_long == 1).await;
        let mut calls = Vec::new();
        let named = |name, size| {
            let order = order.clone();
            job(&queue, (size, 0), move || {
                order.lock().push(name);
                true
            })
        };
        calls.push(named("longest", 64 * LONG));
        eventually("it waits", || queue.waiting() == 1).await;
        for i in 1..=20 {
            calls.push(named("long", LONG));
            eventually("it waits", || queue.waiting() == i + 1).await;
        }
        go.store(true, Ordering::Relaxed);
        first.await.unwrap().unwrap();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let order = order.lock();
        let at = order.iter().position(|&name| name == "longest").unwrap();
        assert!((1..=OLDEST_EVERY as usize).contains(&at), "{order:?}");
    }

    #[tokio::test]
    async fn a_long_text_waits_for_memory_that_others_give_back() {
        let memory = ClientMemory::new(100);
        let queue = Arc::new(TextQueue::new(3, memory.clone()));
        let go = Arc::new(AtomicBool::new(false));
        let gate = go.clone();
        let first = job(&queue, (LONG, 60), move || gate.load(Ordering::Relaxed));
        eventually("it runs", || memory.held() == 60).await;
        let second = job(&queue, (LONG, 60), || true);
        eventually("it waits", || queue.waiting() == 1).await;
        assert!(job(&queue, (10, 10), || true).await.unwrap().is_ok());
        go.store(true, Ordering::Relaxed);
        assert!(first.await.unwrap().is_ok() && second.await.unwrap().is_ok());
        assert_eq!((memory.held(), memory.refused()), (0, 0));
        // What never fits is refused, not kept.
        let never = job(&queue, (LONG, 101), || true).await.unwrap();
        assert!(matches!(never, Err(RequestError::ClientMemory(_))));
    }

    #[tokio::test]
    async fn a_panic_ends_its_job_alone() {
        let (queue, _) = queue(ClientMemory::unlimited());
        for _ in 0..4 {
            let failed = job(&queue, (LONG, 0), || panic!("a bug")).await.unwrap();
            assert!(matches!(failed, Err(RequestError::Internal(_))));
        }
        assert!(job(&queue, (LONG, 0), || true).await.unwrap().is_ok());
    }
}
