//! A small pool of workers for fork-join loops of a few microseconds.
//!
//! A loop is published as one word, `(tasks, next)`. Taking a task is a compare-and-swap on that
//! word, so whoever takes one knows that the loop it belongs to is still open and its closure
//! alive: the caller of [`Pool::run`] leaves only when every task has been counted as done.
//! Idle workers spin for some microseconds, because the next loop of a model step follows at once,
//! and then sleep, because other threads share the machine.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long an idle thread spins before it sleeps (a worker) or yields (the caller).
const SPIN: Duration = Duration::from_micros(40);

/// Most threads a pool may have.
pub const MAX_THREADS: usize = 256;

/// A task panicked; the message it panicked with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TaskPanic(pub String);

/// Type-erased `&dyn Fn(task, worker)` of the open loop.
#[derive(Clone, Copy)]
struct Job {
    closure: *const (),
    call: unsafe fn(*const (), usize, usize),
}

struct Shared {
    /// `tasks << 32 | next`: tasks of the open loop and the first one nobody has taken.
    ticket: AtomicU64,
    /// Tasks of the open loop that are finished.
    done: AtomicUsize,
    /// Written by the caller while the ticket shows no task left; read by whoever took a task.
    job: UnsafeCell<Job>,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
    stop: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<String>>,
}

// SAFETY: `job` is the only field that is not `Sync`. It is written in `Pool::run`, which has the
// pool exclusively, after all tasks of the previous loop were counted in `done` (so no thread that
// took a task still uses it), and read only after taking a task of the loop it was written for.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is only dereferenced under the rule above.
unsafe impl Send for Shared {}

/// Worker threads; one loop runs at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    shares: Vec<Share>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

impl Pool {
    /// A pool of `threads` threads (clamped to 1..=256), the caller of [`Pool::run`] being one.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            ticket: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            job: UnsafeCell::new(Job {
                closure: std::ptr::null(),
                call: |_, _, _| (),
            }),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let threads = threads.clamp(1, MAX_THREADS);
        let mut pool = Self {
            shared,
            workers: Vec::new(),
            shares: (0..threads).map(|_| Share::default()).collect(),
        };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("ebb-compute-{worker}"));
            pool.workers
                .push(thread.spawn(move || shared.serve(worker))?);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(task, worker)` for every task in `0..tasks`, in any order and on any thread;
    /// `worker` is below [`Pool::threads`] and no two concurrent calls have the same one. Returns
    /// when all have finished. If one panics the others still run, and the first message returns.
    pub fn run<F: Fn(usize, usize) + Sync>(&mut self, tasks: usize, f: F) -> Result<(), TaskPanic> {
        unsafe fn call<F: Fn(usize, usize)>(closure: *const (), task: usize, worker: usize) {
            // SAFETY: `closure` is the `&F` published below, alive until its loop is done.
            unsafe { (*closure.cast::<F>())(task, worker) }
        }
        assert!(tasks < 1 << 31, "{tasks} tasks in one loop");
        let shared = &*self.shared;
        if tasks > 0 {
            let job = Job {
                closure: (&raw const f).cast(),
                call: call::<F>,
            };
            if tasks == 1 || self.workers.is_empty() {
                for task in 0..tasks {
                    shared.execute(job, task, 0);
                }
            } else {
                // SAFETY: `&mut self` and the end of the previous `run` exclude readers.
                unsafe { *shared.job.get() = job };
                shared.done.store(0, Ordering::Relaxed);
                // Orders the two writes above before any task is taken, and this write before the
                // look at `sleepers` (a worker does the reverse: sleepers, then ticket).
                shared.ticket.store((tasks as u64) << 32, Ordering::SeqCst);
                if shared.sleepers.load(Ordering::SeqCst) > 0 {
                    drop(shared.lock.lock());
                    shared.wake.notify_all();
                }
                while shared.take_and_execute(0) {}
                shared.wait_until_done(tasks);
            }
        }
        match shared.panic.lock().take() {
            Some(message) => Err(TaskPanic(message)),
            None => Ok(()),
        }
    }
}

impl Pool {
    /// Divides `0..items` among the threads: runs `f` once per share, with an iterator over ranges
    /// of items that nobody else gets, first those of a contiguous share in ascending order, then
    /// the last ones of other shares that are not done. For loops that stream through memory, which
    /// one long run per thread serves best. Every item is given out once if `f` exhausts its
    /// iterator.
    pub fn run_shares<F>(&mut self, items: usize, f: F) -> Result<(), TaskPanic>
    where
        F: Fn(Items<'_>) + Sync,
    {
        let shares = std::mem::take(&mut self.shares);
        let of = shares.len();
        for (index, share) in shares.iter().enumerate() {
            let Range { start, end } = share_of(items, index, of);
            share.set(start, end);
        }
        let result = self.run(of, |own, _| {
            f(Items {
                shares: &shares,
                own,
                at: 0,
            });
        });
        self.shares = shares;
        result
    }
}

/// The items of share `index` of `of`.
fn share_of(items: usize, index: usize, of: usize) -> Range<usize> {
    index * items / of..(index + 1) * items / of
}

/// Items of a loop of [`Pool::run_shares`].
#[derive(Debug)]
pub struct Items<'a> {
    shares: &'a [Share],
    own: usize,
    /// How many shares are exhausted, the own one being the first.
    at: usize,
}

impl Items<'_> {
    /// Where this thread's share of another loop's `items` begins.
    pub fn start_of(&self, items: usize) -> usize {
        share_of(items, self.own, self.shares.len()).start
    }
}

impl Iterator for Items<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        while self.at < self.shares.len() {
            let share = &self.shares[(self.own + self.at) % self.shares.len()];
            let items = share.take(self.at == 0);
            if items.is_some() {
                return items;
            }
            self.at += 1;
        }
        None
    }
}

/// The items of a share that nobody has taken, `first << 32 | end`, far enough from the next one
/// that neither a cache line nor the prefetcher of neighbouring lines connects them.
#[derive(Debug, Default)]
#[repr(align(256))]
struct Share(AtomicU64);

impl Share {
    fn set(&self, first: usize, end: usize) {
        // The loop that follows publishes it.
        self.0
            .store((first as u64) << 32 | end as u64, Ordering::Relaxed);
    }

    /// Takes the first half of what is left of one's own share, the last item of another's. (Half,
    /// because the exchange stops the processor's run ahead through memory; not all, so that there
    /// is something to take if its owner is held up.)
    fn take(&self, own: bool) -> Option<Range<usize>> {
        let split = |word: u64| ((word >> 32) as usize, word as u32 as usize);
        let cut = |word: u64| {
            let (first, end) = split(word);
            (first < end).then(|| {
                if own {
                    first + (end - first).div_ceil(2)
                } else {
                    end - 1
                }
            })
        };
        // Relaxed: the items are only numbers, and the loop's counters order what is done to them.
        let relaxed = Ordering::Relaxed;
        let word = self.0.fetch_update(relaxed, relaxed, |word| {
            let (first, end) = split(word);
            cut(word).map(|cut| match own {
                true => (cut as u64) << 32 | end as u64,
                false => (first as u64) << 32 | cut as u64,
            })
        });
        let word = word.ok()?;
        let ((first, end), cut) = (split(word), cut(word)?);
        Some(if own { first..cut } else { cut..end })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.lock.lock());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so it has none of its own to pass on.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Takes one task of the open loop and runs it; false if there is none left.
    fn take_and_execute(&self, worker: usize) -> bool {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        loop {
            let (tasks, next) = ((ticket >> 32) as usize, ticket as u32 as usize);
            if next >= tasks {
                return false;
            }
            match self.ticket.compare_exchange_weak(
                ticket,
                ticket + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    // SAFETY: the task taken is not yet done, so `run` has not returned and does
                    // not write `job`; the exchange acquired the write made for this loop.
                    let job = unsafe { *self.job.get() };
                    self.execute(job, next, worker);
                    self.done.fetch_add(1, Ordering::Release);
                    return true;
                }
                Err(now) => ticket = now,
            }
        }
    }

    fn execute(&self, job: Job, task: usize, worker: usize) {
        // SAFETY: the closure outlives its loop, which this task keeps open.
        let call = || unsafe { (job.call)(job.closure, task, worker) };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
            self.panic.lock().get_or_insert_with(|| message(&*payload));
        }
    }

    fn wait_until_done(&self, tasks: usize) {
        let mut spin = Spin::new();
        while self.done.load(Ordering::Acquire) < tasks {
            if !spin.spin() {
                std::thread::yield_now();
            }
        }
    }

    fn has_task(&self, order: Ordering) -> bool {
        let ticket = self.ticket.load(order);
        (ticket as u32) < (ticket >> 32) as u32
    }

    /// A worker's life: take tasks, spin a little, sleep.
    fn serve(&self, worker: usize) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut spin = Spin::new();
            while !self.has_task(Ordering::Relaxed) && spin.spin() {}
            while self.take_and_execute(worker) {}
            if spin.exhausted {
                self.sleep();
            }
        }
    }

    fn sleep(&self) {
        let mut guard = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.has_task(Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst) {
            self.wake.wait(&mut guard);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Spins for [`SPIN`], looking at the clock rarely.
struct Spin {
    start: Option<Instant>,
    rounds: u32,
    exhausted: bool,
}

impl Spin {
    fn new() -> Self {
        Self {
            start: None,
            rounds: 0,
            exhausted: false,
        }
    }

    /// One round; false once the time is up.
    fn spin(&mut self) -> bool {
        self.rounds += 1;
        if self.rounds.is_multiple_of(32) {
            let start = *self.start.get_or_insert_with(Instant::now);
            self.exhausted = start.elapsed() > SPIN;
        }
        std::hint::spin_loop();
        !self.exhausted
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_distinct_workers() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for tasks in [0usize, 1, 2, 3, 17, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let busy: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
                let run = pool.run(tasks, |task, worker| {
                    assert!(!busy[worker].swap(true, Ordering::SeqCst));
                    counts[task].fetch_add(1, Ordering::SeqCst);
                    busy[worker].store(false, Ordering::SeqCst);
                });
                assert_eq!(run, Ok(()));
                assert!(counts.iter().all(|c| c.load(Ordering::SeqCst) == 1));
            }
        }
    }

    #[test]
    fn shares_cover_every_item_once() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for items in [0usize, 1, 2, 4, 5, 6, 1000] {
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                let run = pool.run_shares(items, |share| {
                    for item in share.flatten() {
                        counts[item].fetch_add(1, Ordering::SeqCst);
                        // Some items take longer, so that shares are taken from.
                        if item % 7 == 0 {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                    }
                });
                assert_eq!(run, Ok(()));
                assert!(counts.iter().all(|c| c.load(Ordering::SeqCst) == 1));
            }
        }
    }

    #[test]
    fn loops_follow_each_other_hot_and_after_sleep() {
        let mut pool = Pool::new(4).unwrap();
        let total = AtomicUsize::new(0);
        for round in 0..3000 {
            if round % 1000 == 999 {
                std::thread::sleep(Duration::from_millis(5));
            }
            // The borrowed local dies right after the loop: a late worker must not touch it.
            let local = round;
            pool.run(7, |task, _| {
                total.fetch_add(local * task, Ordering::Relaxed);
            })
            .unwrap();
        }
        assert_eq!(total.into_inner(), (0..3000).sum::<usize>() * 21);
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        for threads in [1, 3] {
            let mut pool = Pool::new(threads).unwrap();
            let ran = AtomicUsize::new(0);
            let run = pool.run(20, |task, _| {
                ran.fetch_add(1, Ordering::SeqCst);
                assert!(task != 13, "task thirteen");
            });
            assert_eq!(run, Err(TaskPanic("task thirteen".into())));
            assert_eq!(ran.load(Ordering::SeqCst), 20);
            assert_eq!(pool.run(5, |_, _| ()), Ok(()));
        }
        std::panic::set_hook(hook);
    }
}
