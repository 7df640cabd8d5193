//! One file of the hub, into its place in the cache.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::cache::CachedRepository;
use super::client::{Client, Pace, RemoteFile};
use super::error::HubError;
use super::retries::{Failure, Retries};
use crate::model::content_hash::hex;

/// Bytes read, hashed and written at once.
const CHUNK_BYTES: usize = 1 << 20;

/// What the caller is told meanwhile.
pub(super) enum Event {
    /// Another process writes the same file.
    Waiting,
    /// Bytes of the file that are here, of this run or an earlier one.
    Bytes(u64),
}

/// Has the blob of `file` in the cache, downloading what is missing of it. The bytes are checked
/// before the blob has its name.
///
/// # Errors
/// [`HubError`]; what came is kept for the next attempt, unless it is wrong.
pub(super) fn fetch_blob(
    client: &Client<'_>,
    cache: &CachedRepository,
    commit: &str,
    file: &RemoteFile,
    told: &mut dyn FnMut(Event),
) -> Result<(), HubError> {
    let blob = cache.blob(&file.etag);
    if is_there(&blob, file) {
        return Ok(());
    }
    let _lock = lock(&cache.lock(&file.etag), told)?;
    if is_there(&blob, file) {
        return Ok(());
    }
    create_parent(&blob)?;
    let mut partial = Partial::open(cache.partial(&file.etag))?;
    // A wrong byte may have come with an earlier run: then all of it is fetched once more.
    let resumed = partial.length > 0;
    fetch_bytes(client, commit, file, &mut partial, told)?;
    if let Err(wrong) = partial.check(client, file) {
        partial.clear()?;
        if !resumed {
            return Err(partial.remove(wrong));
        }
        fetch_bytes(client, commit, file, &mut partial, told)?;
        if let Err(wrong) = partial.check(client, file) {
            return Err(partial.remove(wrong));
        }
    }
    partial.finish(&blob)
}

/// A blob has its name once it was checked; a length that differs is of another program's mistake.
fn is_there(blob: &Path, file: &RemoteFile) -> bool {
    fs::metadata(blob).is_ok_and(|found| {
        let is_whole = file.size.is_none_or(|size| size == found.len());
        found.is_file() && is_whole
    })
}

/// Takes the lock, waiting for another process if need be. It is released with the file.
fn lock(path: &Path, told: &mut dyn FnMut(Event)) -> Result<File, HubError> {
    create_parent(path)?;
    // Never deleted: another process may be waiting on this very file.
    let file = File::options().create(true).append(true).open(path);
    let file = file.map_err(|error| HubError::io("create", path, error))?;
    let locked = match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            told(Event::Waiting);
            file.lock()
        }
        // Some network file systems have no locks. What is downloaded is checked all the same.
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    };
    locked.map_err(|error| HubError::io("lock", path, error))?;
    Ok(file)
}

fn create_parent(path: &Path) -> Result<(), HubError> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(folder).map_err(|error| HubError::io("create", folder, error))
}

/// Brings the bytes that are missing.
fn fetch_bytes(
    client: &Client<'_>,
    commit: &str,
    file: &RemoteFile,
    partial: &mut Partial,
    told: &mut dyn FnMut(Event),
) -> Result<(), HubError> {
    let what = &file.path;
    let mut retries = Retries::new(client.patience());
    retries.reached(partial.length);
    let mut buffer = vec![0; CHUNK_BYTES];
    if file.size.is_some_and(|size| partial.length > size) {
        partial.clear()?;
    }
    told(Event::Bytes(partial.length));
    while file.size != Some(partial.length) {
        match attempt(
            client,
            commit,
            file,
            partial,
            &mut buffer,
            &mut retries,
            told,
        )? {
            Ok(()) => return Ok(()),
            Err(failure) => {
                let waited = retries.wait(failure, what);
                waited.map_err(|failure| client.error(failure, Some(&file.path), what))?;
            }
        }
    }
    Ok(())
}

/// One request; its outer error is of this machine, its inner one of the network.
fn attempt(
    client: &Client<'_>,
    commit: &str,
    file: &RemoteFile,
    partial: &mut Partial,
    buffer: &mut [u8],
    retries: &mut Retries<'_>,
    told: &mut dyn FnMut(Event),
) -> Result<Result<(), Failure>, HubError> {
    let mut bytes = match client.bytes(commit, file, partial.length) {
        Ok(bytes) => bytes,
        Err(failure) => return Ok(Err(failure)),
    };
    if bytes.offset != partial.length {
        partial.clear()?;
    }
    let mut pace = Pace::new(client.patience());
    loop {
        let n = match bytes.read(buffer, &mut pace) {
            Ok(0) => break,
            Ok(n) => n,
            Err(failure) => return Ok(Err(failure)),
        };
        partial.add(&buffer[..n], file)?;
        let most = file.size.unwrap_or(file.bytes_max());
        if partial.length > most {
            let found = format!("more than {most}");
            let wrong = wrong(client, file, "length", most.to_string(), found);
            return Err(partial.remove(wrong));
        }
        retries.reached(partial.length);
        told(Event::Bytes(partial.length));
    }
    // An answer may end early and be sound HTTP.
    Ok(match file.size {
        Some(size) if partial.length < size => Err(Failure::Cut {
            host: bytes.host().to_owned(),
            problem: "the connection was closed early".to_owned(),
        }),
        _ => Ok(()),
    })
}

/// The first bytes of a file, beside its blob.
struct Partial {
    path: PathBuf,
    file: File,
    length: u64,
    hash: Sha256,
}

impl Partial {
    /// Opens what an earlier run has left, or an empty file. Only the lock's holder may do so.
    fn open(path: PathBuf) -> Result<Self, HubError> {
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let file = options.open(&path);
        let file = file.map_err(|error| HubError::io("create", &path, error))?;
        let mut partial = Self {
            path,
            file,
            length: 0,
            hash: Sha256::new(),
        };
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let read = partial.file.read(&mut buffer);
            match read.map_err(|error| HubError::io("read", &partial.path, error))? {
                0 => return Ok(partial),
                n => {
                    partial.hash.update(&buffer[..n]);
                    partial.length += n as u64;
                }
            }
        }
    }

    fn add(&mut self, bytes: &[u8], file: &RemoteFile) -> Result<(), HubError> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| match HubError::io("write", &self.path, error) {
            HubError::DiskFull { path, .. } => HubError::DiskFull {
                path,
                missing: file.size.map(|size| size.saturating_sub(self.length)),
            },
            error => error,
        })?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Begins anew.
    fn clear(&mut self) -> Result<(), HubError> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.rewind());
        cleared.map_err(|error| HubError::io("write", &self.path, error))?;
        self.length = 0;
        self.hash = Sha256::new();
        Ok(())
    }

    /// Compares length and hash with what was announced. An ETag is SHA-256 of a large file, and
    /// Git's hash of a small one; where it is neither, the length has to do.
    fn check(&mut self, client: &Client<'_>, file: &RemoteFile) -> Result<(), HubError> {
        // Where locks do not hold, another process may have written, too.
        let found = self.file.metadata();
        let found = found.map_err(|error| HubError::io("look at", &self.path, error))?;
        if found.len() != self.length {
            let (expected, found) = (self.length.to_string(), found.len().to_string());
            return Err(wrong(client, file, "length", expected, found));
        }
        if let Some(size) = file.size.filter(|size| *size != self.length) {
            let found = self.length.to_string();
            return Err(wrong(client, file, "length", size.to_string(), found));
        }
        let is_hex = file.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (kind, found) = match file.etag.len() {
            64 if is_hex => ("SHA-256", hex(&self.hash.clone().finalize())),
            40 if is_hex => ("Git hash", self.git_hash()?),
            _ => return Ok(()),
        };
        match found.eq_ignore_ascii_case(&file.etag) {
            true => Ok(()),
            false => Err(wrong(client, file, kind, file.etag.clone(), found)),
        }
    }

    /// Git's hash of the file: SHA-1, with the length before the bytes.
    fn git_hash(&mut self) -> Result<String, HubError> {
        let mut hash = sha1::Sha1::new();
        hash.update(format!("blob {}\0", self.length));
        let mut read = || -> io::Result<()> {
            self.file.seek(SeekFrom::Start(0))?;
            let mut buffer = vec![0; CHUNK_BYTES];
            loop {
                match self.file.read(&mut buffer)? {
                    0 => return Ok(()),
                    n => hash.update(&buffer[..n]),
                }
            }
        };
        read().map_err(|error| HubError::io("read", &self.path, error))?;
        Ok(hex(&hash.finalize()))
    }

    fn finish(self, blob: &Path) -> Result<(), HubError> {
        let done = self.file.sync_all();
        let done = done.and_then(|()| fs::rename(&self.path, blob));
        done.map_err(|error| HubError::io("write", blob, error))
    }

    /// Takes a wrong file away.
    fn remove(&self, why: HubError) -> HubError {
        match fs::remove_file(&self.path) {
            Ok(()) => why,
            Err(error) => HubError::io("remove", &self.path, error),
        }
    }
}

fn wrong(
    client: &Client<'_>,
    file: &RemoteFile,
    kind: &'static str,
    expected: String,
    found: String,
) -> HubError {
    HubError::Checksum {
        repository: client.repository().to_owned(),
        file: file.path.clone(),
        kind,
        expected,
        found,
    }
}
