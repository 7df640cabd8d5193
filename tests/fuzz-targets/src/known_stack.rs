//! A thread whose stack has the size that a server's threads for texts have.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use ebb_models::spawn_with_known_stack;

type Work = Box<dyn FnOnce() + Send>;

/// Runs `work` on that thread. It is the same for every call, so that inputs are tried quickly. A
/// panic goes on here.
pub(crate) fn on_known_stack(work: impl FnOnce() + Send + 'static) {
    static THREAD: OnceLock<Mutex<SyncSender<Work>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (sender, receiver) = sync_channel::<Work>(1);
        spawn_with_known_stack("texts".to_owned(), move || {
            receiver.into_iter().for_each(|work| work());
        })
        .expect("the system has a thread to give");
        Mutex::new(sender)
    });
    let (done, ended) = sync_channel(1);
    let run = move || {
        let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
    };
    let thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
    thread.send(Box::new(run)).expect("the thread runs on");
    drop(thread);
    if let Err(panic) = ended.recv().expect("it answers") {
        resume_unwind(panic);
    }
}
