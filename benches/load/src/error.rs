//! What ends a load test.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::protocol::Failure;

/// A load test cannot begin or go on.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A flag is wrong; the message names it.
    #[error("{0}")]
    Usage(String),
    /// The server does not even tell what it is.
    #[error("the server does not answer: {0}")]
    Server(#[from] Failure),
    /// A file cannot be read or written.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// `read` or `write`.
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {why}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// A sentence.
        why: String,
    },
    /// The system gives no thread or signal handler.
    #[error("cannot start: {0}")]
    Start(io::Error),
    /// The run showed what it was not to show.
    #[error("{0}")]
    Missed(String),
}

impl LoadError {
    /// For `map_err`: `operation` on `path` failed.
    pub fn file(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File {
            operation,
            path,
            source,
        }
    }
}
