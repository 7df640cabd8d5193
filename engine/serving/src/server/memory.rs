//! What one call makes the server hold, as long as it lasts.

use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Extensions;

use crate::client_memory::{ClientMemory, ClientMemoryFull, Held};

/// A call's account. It travels with the request (as an extension) and with the answer; what it
/// holds is given back when both are gone, or before.
#[derive(Clone)]
pub(super) struct CallMemory(Arc<Mutex<Held>>);

impl CallMemory {
    pub(super) fn new(memory: &ClientMemory) -> Self {
        Self(Arc::new(Mutex::new(memory.hold_nothing())))
    }

    /// Takes `bytes` more.
    pub(super) fn grow(&self, bytes: usize) -> Result<(), ClientMemoryFull> {
        self.0.lock().grow(bytes)
    }

    /// The account of a call. One that did not come over a port has none of its own.
    pub(super) fn of(extensions: &mut Extensions) -> Option<Self> {
        extensions.remove()
    }

    /// The message has been used up: gives its bytes back.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
