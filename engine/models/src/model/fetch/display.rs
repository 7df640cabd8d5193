//! Showing a download: a bar on a terminal, a few plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::FetchProgress;

/// Prints a download's progress to standard error.
pub struct FetchDisplay {
    name: String,
    terminal: bool,
    /// Of the current phase, on a terminal.
    bar: Option<ProgressBar>,
    phase: Option<Phase>,
    /// The last tenth that was printed as a line.
    tenth: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Waiting,
    Downloading,
    Unpacking,
}

impl Phase {
    fn verb(self) -> &'static str {
        match self {
            Self::Waiting => "waiting for another process to download",
            Self::Downloading => "downloading",
            Self::Unpacking => "unpacking and checking",
        }
    }
}

impl FetchDisplay {
    /// For the model called `name`.
    pub fn new(name: &str) -> Self {
        Self::on_terminal(name, std::io::stderr().is_terminal())
    }

    fn on_terminal(name: &str, terminal: bool) -> Self {
        Self {
            name: name.to_owned(),
            terminal,
            bar: None,
            phase: None,
            tenth: 0,
        }
    }

    /// Shows where the download stands.
    pub fn show(&mut self, progress: FetchProgress) {
        let (phase, done, total) = match progress {
            FetchProgress::Waiting => (Phase::Waiting, 0, 0),
            FetchProgress::Downloading { done, total } => (Phase::Downloading, done, total),
            FetchProgress::Unpacking { done, total } => (Phase::Unpacking, done, total),
        };
        if self.terminal {
            if self.phase != Some(phase) {
                self.clear();
                self.bar = Some(self.new_bar(phase, total));
            }
            if let Some(bar) = &self.bar {
                // More files may turn out to be needed.
                bar.set_length(total);
                bar.set_position(done);
            }
        } else if let Some(line) = self.line(phase, done, total) {
            // Nobody may be reading; that does not stop the download.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        self.phase = Some(phase);
    }

    fn new_bar(&self, phase: Phase, total: u64) -> ProgressBar {
        let style = match phase {
            Phase::Waiting => "{msg} ({elapsed})",
            _ => "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}",
        };
        let style = ProgressStyle::with_template(style)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        let message = format!("{} {}", phase.verb(), self.name);
        let bar = ProgressBar::new(total)
            .with_style(style)
            .with_message(message);
        if phase == Phase::Waiting {
            // Nothing else redraws it.
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        bar
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// The line to print, if there is news: a new phase, or another tenth of the download.
    fn line(&mut self, phase: Phase, done: u64, total: u64) -> Option<String> {
        let tenth = (done * 10).checked_div(total).unwrap_or(0);
        let megabytes = |bytes: u64| bytes / 1_000_000;
        let further = tenth > self.tenth && megabytes(total) > 0;
        let news = self.phase != Some(phase) || (phase == Phase::Downloading && further);
        self.tenth = tenth;
        news.then(|| match phase {
            Phase::Waiting => format!("{} {}", phase.verb(), self.name),
            _ => {
                let (done, total) = (megabytes(done), megabytes(total));
                format!("{} {}: {done} of {total} MB", phase.verb(), self.name)
            }
        })
    }
}

impl Drop for FetchDisplay {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_there_is_a_line_for_each_tenth_and_each_phase() {
        let mut display = FetchDisplay::on_terminal("M", false);
        let mut lines = Vec::new();
        let mut step = |display: &mut FetchDisplay, phase, done| {
            lines.extend(display.line(phase, done, 100_000_000));
            display.phase = Some(phase);
        };
        for done in (0..=100).step_by(2) {
            step(&mut display, Phase::Downloading, done * 1_000_000);
        }
        for done in [1, 50, 100] {
            step(&mut display, Phase::Unpacking, done * 1_000_000);
        }
        assert_eq!(lines.len(), 11 + 1, "{lines:#?}");
        assert_eq!(lines[3], "downloading M: 30 of 100 MB");
        assert_eq!(lines[11], "unpacking and checking M: 1 of 100 MB");
    }
}
