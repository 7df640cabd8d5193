//! Output that ends at a bound.

use std::io::{self, Write};

/// Collects at most so many bytes, and fails on the next.
#[derive(Debug)]
pub(super) struct Bounded {
    bytes: Vec<u8>,
    max: usize,
    full: bool,
}

impl Bounded {
    pub(super) fn new(max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            max,
            full: false,
        }
    }

    /// Whether something was refused.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// What was written, if it is text.
    pub(super) fn into_text(self) -> Option<String> {
        String::from_utf8(self.bytes).ok()
    }
}

impl Write for Bounded {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if buffer.len() > self.max - self.bytes.len() {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
