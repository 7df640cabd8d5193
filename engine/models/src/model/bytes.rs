//! The bytes of a model file, shared by everything that was parsed out of it.

use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use ebb_kernels::MappedFile;

/// The bytes of one file, cheap to clone: mapped from disk, or in memory for tests and fuzzers.
#[derive(Clone, Debug)]
pub struct FileBytes(Arc<Repr>);

#[derive(Debug)]
enum Repr {
    Mapped(MappedFile),
    Memory(Vec<u8>),
}

impl FileBytes {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// What [`MappedFile::open`] reports.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Repr::Mapped(MappedFile::open(path)?))))
    }

    /// Lets go of the memory that holds a range of a mapped file; its bytes can still be read.
    pub fn done_reading(&self, range: Range<usize>) {
        if let Repr::Mapped(file) = &*self.0 {
            file.done_reading(range);
        }
    }

    /// Copies the bytes from `offset` on into all of `out`; the fastest way to read much of a file
    /// once.
    ///
    /// # Errors
    /// What [`MappedFile::read_at`] reports.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        match &*self.0 {
            Repr::Mapped(file) => file.read_at(offset as u64, out),
            Repr::Memory(bytes) => {
                let part = bytes.get(offset..).and_then(|rest| rest.get(..out.len()));
                out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Repr::Memory(bytes)))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Repr::Mapped(file) => file,
            Repr::Memory(bytes) => bytes,
        }
    }
}
