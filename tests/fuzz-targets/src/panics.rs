//! Which panics count.
//!
//! The `tokenizers` crate panics on some files that contradict themselves, and our reader turns
//! that into an error. Such a panic is the one kind that does not count.

use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether what runs now may catch panics of libraries.
static CAUGHT: AtomicBool = AtomicBool::new(false);

/// Runs `work`, which catches panics of libraries.
pub(crate) fn that_are_caught<T>(work: impl FnOnce() -> T) -> T {
    CAUGHT.store(true, Ordering::Relaxed);
    let result = work();
    CAUGHT.store(false, Ordering::Relaxed);
    result
}

/// Whether a panic is one of a library's which is caught. The registry's sources have absolute
/// paths with the registry's name in them.
fn is_caught(info: &PanicHookInfo<'_>) -> bool {
    let of_library = |place: &panic::Location<'_>| place.file().contains("/registry/src/");
    CAUGHT.load(Ordering::Relaxed) && info.location().is_some_and(of_library)
}

/// From now on a panic ends the process, whoever would catch it: what fuzzers want.
pub fn abort_on_panic() {
    panic::set_hook(Box::new(|info| {
        if !is_caught(info) {
            eprintln!("{info}\n{}", std::backtrace::Backtrace::force_capture());
            std::process::abort();
        }
    }));
}

/// From now on panics are counted, those of other threads and those that are caught, too: what
/// tests want.
pub fn count_panics() -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    panic::set_hook(Box::new(move |info| {
        if !is_caught(info) {
            eprintln!("{info}");
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }));
    count
}
