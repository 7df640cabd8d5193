//! Why a model of the hub could not be had.

use std::io;
use std::path::{Path, PathBuf};

/// A model of the hub that could not be found or downloaded. The sentences say what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The cache does not have all of it, and the hub may not be asked.
    #[error(
        "{repository} is not here: {problem}. {variable} forbids to download it; unset that, or \
         copy the model into the cache"
    )]
    Offline {
        /// `ORG/NAME`.
        repository: String,
        /// What the cache lacks.
        problem: String,
        /// The variable that is set.
        variable: &'static str,
    },
    /// No variable says where the cache is.
    #[error("there is nowhere to keep {0}: set HF_HOME or HOME, or give --cache-dir")]
    NoCache(String),
    /// A variable whose value cannot be used. The value may be a secret and is not shown.
    #[error("{name} cannot be used: {problem}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The system trusts nobody.
    #[error(
        "no certificates of authorities are on this machine, so that no HTTPS server can be \
         trusted; install the package ca-certificates, or set SSL_CERT_FILE"
    )]
    NoCertificates,
    /// A repository with terms that have to be accepted.
    #[error(
        "{repository} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that \
         account{}",
        if *.token { " (the token in use is of an account that has not been let in)" } else { "" }
    )]
    Gated {
        /// `ORG/NAME`.
        repository: String,
        /// Where its terms are.
        page: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// The hub wants to know who asks.
    #[error(
        "the hub refuses {repository} with {status}: {}",
        if *.token {
            "the token in use is not valid, or its account may not read this repository; check \
             the name and HF_TOKEN"
        } else {
            "it does not exist, or is private or gated, and no file or directory of that name is \
             here; check the name, accept its terms on its page if it has any, and set HF_TOKEN"
        }
    )]
    Access {
        /// `ORG/NAME`.
        repository: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        token: bool,
    },
    /// No such repository.
    #[error(
        "the hub at {endpoint} has no repository {repository}, and no file or directory of that \
         name is here; check the name"
    )]
    NoRepository {
        /// `ORG/NAME`.
        repository: String,
        /// The hub.
        endpoint: String,
    },
    /// No such branch, tag or commit.
    #[error("{repository} has no revision {revision}; give a branch, a tag or a commit of it")]
    NoRevision {
        /// `ORG/NAME`.
        repository: String,
        /// What was asked for.
        revision: String,
    },
    /// A file that was listed is not there.
    #[error("the hub lists {file} in {repository}, and does not have it; try again later")]
    NoFile {
        /// `ORG/NAME`.
        repository: String,
        /// The file.
        file: String,
    },
    /// Too many requests, for longer than we wait.
    #[error(
        "the hub at {endpoint} has had too many requests from here (429){}; try again later, or \
         set HF_TOKEN, which raises the limit",
        .seconds.map(|s| format!(" and asks to wait {s} s")).unwrap_or_default()
    )]
    TooManyRequests {
        /// The hub.
        endpoint: String,
        /// What `Retry-After` said.
        seconds: Option<u64>,
    },
    /// A status that is no success.
    #[error("the hub at {endpoint} answered {status} for {what}; try again later")]
    Status {
        /// The hub.
        endpoint: String,
        /// The status.
        status: u16,
        /// What was asked for.
        what: String,
    },
    /// The network, or what is at its other end.
    #[error(
        "cannot download {what} from {host}: {problem}. What has come so far is kept; try again, \
         or check the network, HF_ENDPOINT and HTTPS_PROXY"
    )]
    Network {
        /// What was asked for.
        what: String,
        /// Who was asked last.
        host: String,
        /// What happened.
        problem: String,
    },
    /// An answer that is not what a hub answers.
    #[error("the answer of {host} for {what} cannot be used: {problem}. Is HF_ENDPOINT a hub?")]
    Answer {
        /// What was asked for.
        what: String,
        /// Who was asked last.
        host: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The repository has no model that can be served, or several.
    #[error("{repository} cannot be downloaded: {problem}")]
    Choice {
        /// `ORG/NAME`.
        repository: String,
        /// Which files there are.
        problem: String,
    },
    /// A file that is not the one that was published.
    #[error(
        "{file} of {repository} was damaged or exchanged on its way: its {kind} is {found} \
         instead of {expected}. The file has been removed; try again"
    )]
    Checksum {
        /// `ORG/NAME`.
        repository: String,
        /// The file.
        file: String,
        /// `SHA-256`, `Git hash` or `length`.
        kind: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// No room, as it turned out before anything was written.
    #[error(
        "{} has room for {available} bytes, and {needed} bytes of {repository} are to come; make \
         room, or set HF_HOME or --cache-dir to a larger disk",
        path.display()
    )]
    NoRoom {
        /// `ORG/NAME`.
        repository: String,
        /// The cache.
        path: PathBuf,
        /// Bytes still to come.
        needed: u64,
        /// Bytes that the disk takes.
        available: u64,
    },
    /// No room, as it turned out in the end.
    #[error(
        "the disk of {} is full{}; make room, or set HF_HOME or --cache-dir to a larger one. What \
         has come so far is kept",
        path.display(),
        .missing.map(|n| format!(", and {n} more bytes are to come")).unwrap_or_default()
    )]
    DiskFull {
        /// The file that was written.
        path: PathBuf,
        /// Bytes that are still to come.
        missing: Option<u64>,
    },
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl HubError {
    /// Of a file operation; a full disk has a sentence of its own.
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull {
                path,
                missing: None,
            },
            _ => Self::Io {
                action,
                path,
                source,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_a_sentence_of_its_own() {
        let path = Path::new("/c/blobs/x.incomplete");
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let sentence = HubError::io("write", path, kind.into()).to_string();
            assert!(
                sentence.starts_with("the disk of /c/blobs/x.incomplete is full; make room"),
                "{sentence}"
            );
        }
        let other = HubError::io("write", path, io::ErrorKind::PermissionDenied.into());
        assert!(other.to_string().starts_with("cannot write /c/blobs/x"));
    }
}
