//! What one call makes the server hold, as long as it lasts.

use std::sync::Arc;

use axum::http::Extensions;
use parking_lot::Mutex;

use crate::client_memory::{ClientMemory, ClientMemoryFull, Held};

/// A call's account. It travels with the request (as an extension) and with the answer; what it
/// holds is given back when both are gone, or before.
#[derive(Clone)]
pub(crate) struct CallMemory(Arc<Mutex<Held>>);

impl CallMemory {
    pub(crate) fn new(memory: &ClientMemory) -> Self {
        Self(Arc::new(Mutex::new(memory.hold_nothing())))
    }

    /// Takes `bytes` more.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), ClientMemoryFull> {
        self.0.lock().grow(bytes)
    }

    /// Takes `bytes` more, even beyond the budget.
    pub(crate) fn grow_anyway(&self, bytes: usize) {
        self.0.lock().grow_anyway(bytes);
    }

    /// Gives `bytes` back, or all if there are fewer.
    pub(crate) fn shrink(&self, bytes: usize) {
        self.0.lock().shrink(bytes);
    }

    /// The account of a call. One that did not come over a port has none of its own.
    pub(crate) fn of(extensions: &mut Extensions) -> Option<Self> {
        extensions.remove()
    }

    /// The message has been used up: gives its bytes back.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
