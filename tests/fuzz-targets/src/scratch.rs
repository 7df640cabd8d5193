//! Files for readers that want files, in memory where the system has such a folder.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder of this thread's own.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = tempfile::Builder::new()
            .prefix("ebb-fuzz-")
            .tempdir_in(memory);
        let folder = folder.or_else(|_| TempDir::new());
        Self(folder.expect("a folder for temporary files"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file anew. Nobody may have the old one mapped.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("room for a file");
        path
    }
}
