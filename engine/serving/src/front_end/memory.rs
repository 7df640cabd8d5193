//! What one call makes the server hold, and the key that it counts for, as long as it lasts.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::http::Extensions;
use parking_lot::Mutex;

use crate::access::Running;
use crate::client_memory::{ClientMemory, ClientMemoryFull, Held};
use crate::core::{GenerateStream, StreamEvent};

/// Bytes of messages that an answer may hold even when clients have used up their memory.
const PROMISED_BYTES: usize = 64 * 1024;

/// A call's account. It travels with the request (as an extension) and with the answer; what it
/// holds is given back when both are gone, or before.
#[derive(Clone)]
pub(crate) struct CallMemory(Arc<Inner>);

struct Inner {
    held: Mutex<Held>,
    /// Set when the call was let in with a key.
    running: OnceLock<Running>,
}

impl CallMemory {
    pub(crate) fn new(memory: &ClientMemory) -> Self {
        Self(Arc::new(Inner {
            held: Mutex::new(memory.hold_nothing()),
            running: OnceLock::new(),
        }))
    }

    /// Takes `bytes` more.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), ClientMemoryFull> {
        self.0.held.lock().grow(bytes)
    }

    /// Takes `bytes` more for a part of the answer. A little of every answer is promised room.
    pub(crate) fn grow_for_answer(&self, bytes: usize) -> Result<(), ClientMemoryFull> {
        let mut held = self.0.held.lock();
        if bytes > PROMISED_BYTES {
            return held.grow(bytes);
        }
        held.grow_anyway(bytes);
        Ok(())
    }

    /// Gives `bytes` back, or all if there are fewer.
    pub(crate) fn shrink(&self, bytes: usize) {
        self.0.held.lock().shrink(bytes);
    }

    /// The account of a call. One that did not come over a port has none of its own.
    pub(crate) fn of(extensions: &mut Extensions) -> Option<Self> {
        extensions.remove()
    }

    /// The message has been used up: gives its bytes back.
    pub(crate) fn clear(&self) {
        self.0.held.lock().clear();
    }

    /// The call counts for a key until its account ends.
    pub(crate) fn count_for(&self, running: Running) {
        // A call is let in once; a second time would change nothing.
        let _ = self.0.running.set(running);
    }

    /// Charges the call's key for the prompt of a request that has been accepted: a client that
    /// leaves before the first event has used it, too.
    pub(crate) fn charge_prompt(&self, accepted: &GenerateStream) {
        if let Some(running) = self.0.running.get() {
            running.charge(accepted.prompt_tokens(), Instant::now());
        }
    }

    /// Charges the call's key for the tokens of the answer that this event tells of.
    pub(crate) fn charge(&self, event: &StreamEvent) {
        if let (Some(running), StreamEvent::Delta { token_ids, .. }) = (self.0.running.get(), event)
        {
            running.charge(token_ids.len(), Instant::now());
        }
    }
}
