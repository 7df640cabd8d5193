//! A page that tells what happened: one file, no scripts, nothing fetched.

mod overview;
mod page;
mod plot;
mod stage;

use std::path::Path;

use crate::error::LoadError;
use crate::record::Record;
use crate::summary::Summary;

/// Writes the page.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, summary: &Summary, records: &[Record]) -> Result<(), LoadError> {
    let html = page::html(summary, records).map_err(|error| LoadError::Content {
        path: path.to_owned(),
        why: format!("the page cannot be made: {error:#}"),
    })?;
    std::fs::write(path, html).map_err(LoadError::file("write", path))
}

#[cfg(test)]
mod tests;
