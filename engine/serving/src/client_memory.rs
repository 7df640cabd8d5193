//! One budget in bytes for all that clients make the server hold: messages on their way in, texts
//! being tokenised, prompts of requests that run or wait, answers that nobody has read.
//!
//! What begins something new is refused beyond the budget ([`ClientMemory::hold`]). What was
//! promised room before (a little of every answer under way) is counted, but not refused
//! ([`Held::grow_anyway`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// The budget; clones share it.
#[derive(Debug, Clone)]
pub struct ClientMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: u64,
    held: AtomicU64,
    refused: AtomicU64,
}

/// Clients hold as much as they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "clients make the server hold as much as --client-memory allows ({limit} bytes), and this call \
     takes {bytes} more; send less at once, read answers as they come, or try again later"
)]
pub struct ClientMemoryFull {
    /// The budget.
    pub limit: u64,
    /// What was asked for.
    pub bytes: u64,
}

impl ClientMemory {
    /// A budget of so many bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Inner {
            limit,
            held: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// A budget that nothing exceeds: for programs whose client is their user.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Takes `bytes` of the budget until the result is dropped.
    ///
    /// # Errors
    /// [`ClientMemoryFull`] when that is more than is left.
    pub fn hold(&self, bytes: usize) -> Result<Held, ClientMemoryFull> {
        let mut held = self.hold_nothing();
        held.grow(bytes)?;
        Ok(held)
    }

    /// Whether `bytes` could be taken now.
    pub fn has_room(&self, bytes: usize) -> bool {
        let sum = self.held().checked_add(bytes as u64);
        sum.is_some_and(|sum| sum <= self.0.limit)
    }

    /// An account with nothing in it.
    pub fn hold_nothing(&self) -> Held {
        Held {
            memory: self.clone(),
            bytes: 0,
        }
    }

    /// Bytes that clients may make the server hold.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes that they do.
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// How often something was refused.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

/// A part of the budget, given back when it is dropped.
#[derive(Debug)]
pub struct Held {
    memory: ClientMemory,
    bytes: u64,
}

impl Held {
    /// Takes `bytes` more.
    ///
    /// # Errors
    /// [`ClientMemoryFull`] when that is more than is left; what was held stays held.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ClientMemoryFull> {
        let (inner, bytes) = (&*self.memory.0, bytes as u64);
        let fits = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= inner.limit);
        let taken = inner
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if taken.is_err() {
            inner.refused.fetch_add(1, Ordering::Relaxed);
            let limit = inner.limit;
            return Err(ClientMemoryFull { limit, bytes });
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Takes `bytes` more, even beyond the budget.
    pub fn grow_anyway(&mut self, bytes: usize) {
        self.memory
            .0
            .held
            .fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes += bytes as u64;
    }

    /// Gives `bytes` back, or all if there are fewer.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = self.bytes.min(bytes as u64);
        self.memory.0.held.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        self.shrink(usize::MAX);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_and_nothing_is_taken_twice() {
        let memory = ClientMemory::new(100);
        let mut a = memory.hold(60).unwrap();
        let full = memory.hold(41).unwrap_err();
        assert_eq!((full.limit, full.bytes), (100, 41));
        let mut b = memory.hold(40).unwrap();
        assert!(a.grow(1).is_err() && memory.held() == 100);
        // Promised room is counted, and keeps others out.
        b.grow_anyway(30);
        a.shrink(20);
        assert!(memory.held() == 110 && memory.hold(0).is_err());
        drop(a);
        b.clear();
        assert_eq!((memory.held(), memory.refused()), (0, 3));
        drop(b);
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn no_sum_is_too_large_to_be_refused() {
        let memory = ClientMemory::unlimited();
        let _most = memory.hold(usize::MAX - 1).unwrap();
        assert!(memory.hold(2).is_err());
    }
}
