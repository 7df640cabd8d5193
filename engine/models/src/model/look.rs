//! Whether a file is there. What cannot be looked at is not said to be absent.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::Path;

use super::error::ModelError;

/// What the system knows of `path`, or `None` if nothing is there.
pub(super) fn look(path: &Path) -> Result<Option<Metadata>, ModelError> {
    match path.metadata() {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput => Ok(None),
            _ => Err(ModelError::io(path, error)),
        },
    }
}

/// Whether a file is at `path`.
pub(super) fn is_file(path: &Path) -> Result<bool, ModelError> {
    Ok(look(path)?.is_some_and(|found| found.is_file()))
}
