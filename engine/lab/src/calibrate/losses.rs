//! Named figures, kept in a file as they come so that a calibration can go on where it stopped.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use thiserror::Error;

/// What was found so far, by name: losses of trials, or what a sample's gradients say.
#[derive(Debug, Default)]
pub struct Losses {
    by_name: FxHashMap<String, f64>,
    /// Where they are kept, if anywhere.
    kept: Option<(PathBuf, File)>,
}

/// Why losses cannot be kept or used.
#[derive(Debug, Error)]
pub enum LossesError {
    /// The file cannot be read or written.
    #[error("cannot use {path} to keep what is measured: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is of another measurement.
    #[error(
        "{path} holds measurements of something else ({found} instead of {expected}); delete it \
         to start anew"
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// Its first line.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Something was not measured.
    #[error("{0} was not measured")]
    Missing(String),
}

impl Losses {
    /// Losses kept in `path`, those that are there already included. `of` names what is measured; a
    /// file of anything else is refused. A line that was cut off is measured again.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn kept_in(path: &Path, of: &str) -> Result<Self, LossesError> {
        let failed = |source| LossesError::File {
            path: path.to_owned(),
            source,
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let mut by_name = FxHashMap::default();
        let mut whole = 0;
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let Some(line) = line.strip_suffix('\n') else {
                break;
            };
            whole += line.len() + 1;
            if index == 0 {
                if line != of {
                    return Err(LossesError::Other {
                        path: path.to_owned(),
                        found: line.to_owned(),
                        expected: of.to_owned(),
                    });
                }
            } else if let Some((name, loss)) = line.split_once(',')
                && let Ok(loss) = loss.parse()
            {
                by_name.insert(name.to_owned(), loss);
            }
        }
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(failed)?;
        file.set_len(whole as u64).map_err(failed)?;
        if whole == 0 {
            writeln!(file, "{of}").map_err(failed)?;
        }
        Ok(Self {
            by_name,
            kept: Some((path.to_owned(), file)),
        })
    }

    /// Whether a figure is there.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Notes a figure; in the file, too, if there is one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, name: &str, value: f64) -> Result<(), LossesError> {
        if let Some((path, file)) = &mut self.kept {
            writeln!(file, "{name},{value}").map_err(|source| LossesError::File {
                path: path.clone(),
                source,
            })?;
        }
        self.set(name, value);
        Ok(())
    }

    /// Notes a figure.
    pub fn set(&mut self, name: &str, value: f64) {
        self.by_name.insert(name.to_owned(), value);
    }

    /// A figure.
    ///
    /// # Errors
    /// When it is not there.
    pub fn get(&self, name: &str) -> Result<f64, LossesError> {
        let found = self.by_name.get(name).copied();
        found.ok_or_else(|| LossesError::Missing(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const A: &str = "layer3.k=int4";
    const B: &str = "layer3.v=int2";

    #[test]
    fn what_was_measured_is_there_after_a_restart_and_a_torn_line_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("losses.csv");
        let mut losses = Losses::kept_in(&path, "m 1024").unwrap();
        losses.add(A, 0.25).unwrap();
        drop(losses);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}layer3.v=int2,0.0")).unwrap();
        let mut losses = Losses::kept_in(&path, "m 1024").unwrap();
        assert_eq!((losses.get(A).unwrap(), losses.has(B)), (0.25, false));
        losses.add(B, 1e-6).unwrap();
        let losses = Losses::kept_in(&path, "m 1024").unwrap();
        assert_eq!(losses.get(B).unwrap(), 1e-6);
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("losses.csv");
        Losses::kept_in(&path, "m 1024").unwrap();
        let error = Losses::kept_in(&path, "m 2048").unwrap_err().to_string();
        assert!(
            error.contains("m 1024") && error.contains("m 2048"),
            "{error}"
        );
    }
}
