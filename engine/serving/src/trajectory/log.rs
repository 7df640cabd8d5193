//! Writes a log of trajectories.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Header, Trajectory};

/// A file that trajectories are added to, each as soon as its choice has ended.
pub(crate) struct TrajectoryLog {
    path: PathBuf,
    /// None once something could not be written.
    file: Option<BufWriter<File>>,
}

impl TrajectoryLog {
    /// Starts a log in a new file.
    ///
    /// # Errors
    /// When the file is there already or cannot be written.
    pub(crate) fn create(path: &Path, header: &Header) -> std::io::Result<Self> {
        let mut log = Self {
            path: path.to_owned(),
            file: Some(BufWriter::new(File::create_new(path)?)),
        };
        log.write(header)?;
        Ok(log)
    }

    /// Adds one; the first that cannot be written is the last, and the system's log says so.
    pub(crate) fn add(&mut self, trajectory: &Trajectory) {
        if let Err(error) = self.write(trajectory) {
            let path = self.path.display();
            tracing::error!(%error, "cannot write {path}; no more trajectories are logged");
            self.file = None;
        }
    }

    fn write(&mut self, line: &impl Serialize) -> std::io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        serde_json::to_writer(&mut *file, line)?;
        file.write_all(b"\n")?;
        file.flush()
    }
}
