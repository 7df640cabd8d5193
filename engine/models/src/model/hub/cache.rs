//! The cache of Hugging Face's tools, as it lies on disk.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::choose::{Choice, WEIGHTS, choose};
use super::client::RemoteFile;
use super::error::HubError;
use super::listing::PARTS_MAX;
use super::name::HubName;
use crate::model::error::ModelError;
use crate::model::hf;
use crate::model::loaded::LoadFormat;
use crate::model::locate::ModelFiles;
use crate::model::look::{is_file, look};

/// The most files of a snapshot that are looked at.
const FILES_MAX: usize = 100_000;

/// A repository in a cache.
#[derive(Clone, Debug)]
pub(in crate::model) struct CachedRepository {
    cache: PathBuf,
    folder: String,
}

/// What the cache has of a model.
#[derive(Clone, Debug)]
pub(in crate::model) struct Found {
    /// Where it lies.
    pub(in crate::model) files: ModelFiles,
    snapshot: PathBuf,
    /// Of a GGUF model.
    parts: Vec<String>,
}

impl CachedRepository {
    /// That of `name` in the cache at `cache`; it may not be there.
    pub(in crate::model) fn new(cache: &Path, name: &HubName) -> Self {
        Self {
            cache: cache.to_owned(),
            folder: name.folder(),
        }
    }

    fn here(&self) -> PathBuf {
        self.cache.join(&self.folder)
    }

    /// The whole cache.
    pub(super) fn folder(&self) -> &Path {
        &self.cache
    }

    /// Bytes that the disk still takes, if the system says.
    pub(super) fn room(&self) -> Option<u64> {
        // What is not there yet comes to lie where its parent does.
        let mut there = self.cache.ancestors();
        let found = there.find_map(|folder| rustix::fs::statvfs(folder).ok())?;
        let room = found.f_bavail.saturating_mul(found.f_frsize);
        // Some network file systems say nothing.
        (found.f_blocks > 0).then_some(room)
    }

    /// Bytes of a file that are to come; 0 if nobody knows.
    pub(super) fn missing_bytes(&self, file: &RemoteFile) -> u64 {
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
        let here = length(&self.blob(&file.etag)).max(length(&self.partial(&file.etag)));
        file.size.unwrap_or(0).saturating_sub(here)
    }

    /// The first bytes of a blob.
    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.here().join("blobs").join(format!("{etag}.incomplete"))
    }

    /// The file of a blob.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.here().join("blobs").join(etag)
    }

    /// The lock of a blob.
    pub(super) fn lock(&self, etag: &str) -> PathBuf {
        let locks = self.cache.join(".locks").join(&self.folder);
        locks.join(format!("{etag}.lock"))
    }

    /// The folder of a commit.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.here().join("snapshots").join(commit)
    }

    /// Has `revision` stand for `commit` from now on.
    ///
    /// # Errors
    /// [`HubError::Io`].
    pub(super) fn set_revision(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        let path = self.here().join("refs").join(revision);
        let write = || -> io::Result<()> {
            if std::fs::read_to_string(&path).is_ok_and(|found| found == commit) {
                return Ok(());
            }
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            // Another process may be reading it, or writing it: perhaps one of the same number in
            // another container.
            let made = beside(&path);
            std::fs::write(&made, commit)?;
            replace(&made, &path)
        };
        write().map_err(|error| HubError::io("write", &path, error))
    }

    /// Has `file` of the snapshot of `commit` be the blob of `etag`, by a relative link.
    ///
    /// # Errors
    /// [`HubError::Io`].
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(file);
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        let make = || -> io::Result<()> {
            if std::fs::read_link(&path).is_ok_and(|found| found == target) {
                return Ok(());
            }
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            // Another process may have made it meanwhile and be reading it: it is replaced at once.
            let made = beside(&path);
            match symlink(&target, &made) {
                Ok(()) => replace(&made, &path),
                Err(_) if cannot_link(&made) => std::fs::rename(self.blob(etag), &path),
                Err(error) => Err(error),
            }
        };
        make().map_err(|error| HubError::io("link", &path, error))
    }

    /// What the cache has of `name`, or why it has nothing.
    ///
    /// # Errors
    /// [`ModelError::Io`] where something is there and cannot be looked at.
    pub(in crate::model) fn find(
        &self,
        name: &HubName,
    ) -> Result<Result<Found, String>, ModelError> {
        let HubName {
            repository,
            revision,
            ..
        } = name;
        if look(&self.here())?.is_none() {
            return Ok(Err(format!(
                "the cache of Hugging Face's tools ({}) does not have it; `hf download \
                 {repository}` fetches it",
                self.cache.display()
            )));
        }
        let reference = self.here().join("refs").join(revision);
        let commit = if is_file(&reference)? {
            std::fs::read_to_string(&reference).map_err(|e| ModelError::io(&reference, e))?
        } else {
            revision.clone()
        };
        let commit = commit.trim();
        let mut parts = Path::new(commit).components();
        let is_name = matches!(
            (parts.next(), parts.next()),
            (Some(Component::Normal(_)), None)
        );
        let snapshot = self.snapshot(commit);
        if !is_name || !look(&snapshot)?.is_some_and(|found| found.is_dir()) {
            return Ok(Err(format!(
                "the cache has no revision {revision} of it; `hf download {repository} --revision \
                 {revision}` fetches it"
            )));
        }
        let mut files = Vec::new();
        list(&snapshot, "", PARTS_MAX, &mut files).map_err(|e| ModelError::io(&snapshot, e))?;
        files.sort();
        if files.is_empty() {
            return Ok(Err(
                "what the cache has of it is neither config.json nor a .gguf file; download it \
                 whole"
                    .to_owned(),
            ));
        }
        Ok(choose(name, &files).map(|choice| Found::new(snapshot, choice)))
    }
}

impl Found {
    /// The files of `choice` in `snapshot`.
    pub(super) fn new(snapshot: PathBuf, choice: Choice) -> Self {
        let (files, parts) = match choice {
            Choice::Directory => (ModelFiles::Directory(snapshot.clone()), Vec::new()),
            Choice::Gguf(parts) => {
                let first = parts.first().map_or("", String::as_str);
                (ModelFiles::Gguf(snapshot.join(first)), parts)
            }
        };
        Self {
            files,
            snapshot,
            parts,
        }
    }

    /// The first file that is not there and without which the model cannot be opened.
    ///
    /// # Errors
    /// [`ModelError`] where something is there and cannot be read.
    pub(super) fn missing(&self, format: LoadFormat) -> Result<Option<String>, ModelError> {
        let mut wanted = self.parts.clone();
        if let ModelFiles::Directory(dir) = &self.files {
            wanted.push("config.json".to_owned());
            if format != LoadFormat::Dummy {
                wanted.push("tokenizer.json".to_owned());
                let weights = hf::weight_files(dir)?;
                wanted.extend(weights.unwrap_or_else(|| vec![WEIGHTS.to_owned()]));
            }
        }
        for file in wanted {
            if !is_file(&self.snapshot.join(&file))? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

/// Adds the paths of all files below `folder`, which `prefix` leads to.
fn list(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) -> io::Result<()> {
    for entry in folder.read_dir()?.filter_map(Result::ok) {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = format!("{prefix}{name}");
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth > 1 {
                list(&entry.path(), &format!("{path}/"), depth - 1, files)?;
            }
        } else if files.len() < FILES_MAX {
            files.push(path);
        }
    }
    Ok(())
}

/// A name beside `path` that nobody else has.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    let any = RandomState::new().hash_one(path);
    name.push(format!(".{any:016x}.tmp"));
    name.into()
}

/// Has `made` be at `path`; leaves nothing behind if it cannot.
fn replace(made: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(made, path).inspect_err(|_| {
        let _ = std::fs::remove_file(made);
    })
}

#[cfg(unix)]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether the file system of `path`, which is not there, takes files and no links.
fn cannot_link(path: &Path) -> bool {
    let made = std::fs::write(path, b"").is_ok();
    let _ = std::fs::remove_file(path);
    made
}

/// `ORG/NAME` of a path in the cache.
pub(in crate::model) fn name_of(path: &Path) -> Option<String> {
    let mut parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    let below = parts.find_map(|part| part.strip_prefix("models--"))?;
    let (org, name) = below.split_once("--")?;
    let is_snapshot = path.components().any(|p| p.as_os_str() == "snapshots");
    is_snapshot.then(|| format!("{org}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_the_cache_has_its_models_name() {
        let path = "/c/models--Qwen--Qwen3-0.6B/snapshots/0123abcd";
        let name = Some("Qwen/Qwen3-0.6B".to_owned());
        assert_eq!(name_of(Path::new(path)), name);
        assert_eq!(name_of(&Path::new(path).join("x-Q4_K_M.gguf")), name);
        assert_eq!(name_of(Path::new("/models/qwen")), None);
        assert_eq!(name_of(Path::new("/models--x--y/weights")), None);
    }
}
