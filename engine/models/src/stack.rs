//! Work on a thread whose stack has a known size.
//!
//! Readers of nested things (templates, JSON, regular expressions) recurse. Their limits are set
//! for this stack, whatever thread the caller runs on and however small that one's stack is.

use std::panic;
use std::thread::{self, Builder};

/// Bytes of stack. Only what is used becomes memory.
const STACK_BYTES: usize = 16 << 20;

/// Runs `work` and waits for it. A panic in it goes on here.
///
/// # Errors
/// When the system has no thread to give.
pub fn with_known_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    thread::scope(|scope| {
        let thread = Builder::new()
            .name("model-files".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)?;
        Ok(thread
            .join()
            .unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}
