//! Work on a thread whose stack has a known size.
//!
//! Readers of nested things (templates, JSON, regular expressions) recurse. Their limits are set
//! for this stack, whatever thread the caller runs on and however small that one's stack is.

use std::cell::Cell;
use std::io;
use std::panic;
use std::thread::{self, Builder, JoinHandle};

/// Bytes of a known stack. Only what is used becomes memory.
pub const KNOWN_STACK_BYTES: usize = 16 << 20;

thread_local! {
    /// Whether this thread has such a stack.
    static IS_KNOWN: Cell<bool> = const { Cell::new(false) };
}

fn builder(name: String) -> Builder {
    Builder::new().name(name).stack_size(KNOWN_STACK_BYTES)
}

/// Starts a thread with a known stack, for much work of this kind.
///
/// # Errors
/// When the system has no thread to give.
pub fn spawn_with_known_stack(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    builder(name).spawn(|| {
        IS_KNOWN.set(true);
        work();
    })
}

/// Runs `work` and waits for it: here, if this thread has a known stack, else on one that has. A
/// panic in it goes on here.
///
/// # Errors
/// When the system has no thread to give.
pub fn with_known_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if IS_KNOWN.get() {
        return Ok(work());
    }
    thread::scope(|scope| {
        let thread = builder("model-files".to_owned()).spawn_scoped(scope, || {
            IS_KNOWN.set(true);
            work()
        })?;
        Ok(thread
            .join()
            .unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_known_stack_does_the_work_itself() {
        let here = thread::current().id();
        let [outer, inner] = with_known_stack(|| {
            let inner = with_known_stack(|| thread::current().id()).expect("a thread");
            [thread::current().id(), inner]
        })
        .expect("a thread");
        assert!(outer != here && inner == outer);
        let own = spawn_with_known_stack("own".to_owned(), || {
            let inner = with_known_stack(|| thread::current().id()).expect("a thread");
            assert_eq!(inner, thread::current().id());
        });
        own.expect("a thread").join().expect("no panic");
    }
}
