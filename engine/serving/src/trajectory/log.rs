//! Writes a log of trajectories.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Header, Trajectory};

/// Between two lines in the system's log that say the same thing.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// A file that trajectories are added to, each as soon as its choice has ended.
///
/// One that cannot be written is lost; whoever comes after it is tried anew, so logging goes on
/// once a full disk has room again.
pub(crate) struct TrajectoryLog {
    path: PathBuf,
    file: Box<dyn Write + Send>,
    /// The file may end in the middle of a line.
    is_torn: bool,
    /// Trajectories lost since one was written.
    lost: u64,
    /// When the system's log last heard of it.
    said: Option<Instant>,
}

impl TrajectoryLog {
    /// Starts a log in a new file.
    ///
    /// # Errors
    /// When the file is there already or cannot be written.
    pub(crate) fn create(path: &Path, header: &Header) -> std::io::Result<Self> {
        let file = File::options().append(true).create_new(true).open(path)?;
        Self::new(path, Box::new(file), header)
    }

    fn new(path: &Path, file: Box<dyn Write + Send>, header: &Header) -> std::io::Result<Self> {
        let mut log = Self {
            path: path.to_owned(),
            file,
            is_torn: false,
            lost: 0,
            said: None,
        };
        log.write(header)?;
        Ok(log)
    }

    /// Adds one; false if it could not be written.
    pub(crate) fn add(&mut self, trajectory: &Trajectory) -> bool {
        let result = self.write(trajectory);
        let path = self.path.display();
        match result {
            Ok(()) if self.lost > 0 => {
                let lost = std::mem::take(&mut self.lost);
                tracing::info!(lost, "{path} can be written again");
                self.said = None;
            }
            Ok(()) => {}
            Err(error) => {
                self.lost += 1;
                if self.said.is_none_or(|said| said.elapsed() > SAID_EVERY) {
                    self.said = Some(Instant::now());
                    let lost = self.lost;
                    tracing::error!(%error, lost, "cannot write {path}; trajectories are lost");
                }
                return false;
            }
        }
        true
    }

    /// A line at once, so that nothing of it is left in a buffer when it cannot be written.
    fn write(&mut self, line: &impl Serialize) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        if self.is_torn {
            // What is there of the last line ends here, and spoils no other.
            bytes.push(b'\n');
        }
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        self.is_torn = true;
        self.file.write_all(&bytes)?;
        self.file.flush()?;
        self.is_torn = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::sampling::SamplingOptions;

    /// A disk with so many bytes left.
    #[derive(Clone)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock().expect("no panic");
            let taken = bytes.len().min(disk.1);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.1 -= taken;
            disk.0.extend(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn trajectory(request: &str) -> Trajectory {
        Trajectory {
            request: request.to_owned(),
            choice: 0,
            end: "stop".to_owned(),
            prompt: vec![1],
            sampling: SamplingOptions::default(),
            tokens: vec![2],
            logprobs: Vec::new(),
            cached: 0,
            cached_bits: 16,
            earlier: 0,
            exchanged: false,
            steps: vec![(1, 1)],
            moves: Vec::new(),
        }
    }

    #[test]
    fn a_full_disk_costs_what_it_could_not_hold_and_no_more() {
        let disk = Disk(Arc::new(Mutex::new((Vec::new(), usize::MAX))));
        let header = super::super::tests::header();
        let mut log = TrajectoryLog::new(Path::new("log"), Box::new(disk.clone()), &header)
            .expect("a header");
        let room = |bytes| disk.0.lock().expect("no panic").1 = bytes;
        assert!(log.add(&trajectory("a")));
        room(20);
        assert!(!log.add(&trajectory("b")));
        assert!(!log.add(&trajectory("c")));
        room(usize::MAX);
        assert!(log.add(&trajectory("d")));
        assert!(log.add(&trajectory("e")));
        let written = disk.0.lock().expect("no panic").0.clone();
        let text = String::from_utf8(written).expect("UTF-8");
        let lines: Vec<&str> = text.lines().collect();
        let names = lines[1..].iter().map(|line| {
            let parsed = serde_json::from_str::<Trajectory>(line);
            parsed.map_or(String::new(), |t| t.request)
        });
        assert_eq!(names.collect::<Vec<_>>(), ["a", "", "d", "e"], "{text}");
        assert_eq!(lines[2].len(), 20);
    }
}
