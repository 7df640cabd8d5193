//! Records: kept for the summary, and written as lines of JSON as they come.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::LoadError;
use crate::record::{Line, Record};

/// All records of a test.
#[derive(Debug, Default)]
pub struct Log(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    records: Vec<Record>,
    file: Option<(PathBuf, BufWriter<File>)>,
    error: Option<io::Error>,
}

impl Log {
    /// Records are also written to this file.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn to_file(path: &Path) -> Result<Self, LoadError> {
        let file = File::create(path).map_err(LoadError::file("write", path))?;
        let kept = Kept {
            file: Some((path.to_owned(), BufWriter::with_capacity(1 << 18, file))),
            ..Kept::default()
        };
        Ok(Self(Mutex::new(kept)))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // A record is added as a whole or not at all, so a panic elsewhere has spoilt nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, record: Record) {
        let kept = &mut *self.kept();
        if let (Some((_, file)), None) = (&mut kept.file, &kept.error) {
            let line = serde_json::to_writer(&mut *file, &Line::from(&record));
            kept.error = line
                .map_err(io::Error::from)
                .and_then(|()| file.write_all(b"\n"))
                .err();
        }
        kept.records.push(record);
    }

    /// Calls `read` with all records so far.
    pub fn with<T>(&self, read: impl FnOnce(&[Record]) -> T) -> T {
        read(&self.kept().records)
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// When that, or something before, could not be written.
    pub fn close(&self) -> Result<(), LoadError> {
        let kept = &mut *self.kept();
        let Some((path, file)) = &mut kept.file else {
            return Ok(());
        };
        let flushed = file.flush();
        let result = kept.error.take().map_or(flushed, Err);
        result.map_err(LoadError::file("write", path))
    }
}
