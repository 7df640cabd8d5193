//! The program on a tiny model.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::tiny;

/// A tiny model, a text, and a place for profiles.
pub(crate) struct Bench {
    pub(crate) model: tempfile::TempDir,
    pub(crate) dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::of(tiny::llama)
    }

    /// Of another model.
    pub(crate) fn of(change: impl FnOnce(&mut Value)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let text =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/wikitext2-test-head.txt");
        let text = std::fs::read_to_string(text).expect("the text is there");
        let cut: String = text.chars().take(6000).collect();
        std::fs::write(dir.path().join("text.txt"), cut).expect("write");
        Self {
            model: tiny::model(change),
            dir,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a command that takes a model, in the directory of the text and the profiles.
    pub(crate) fn run_with(&self, model: &Path, line: &str) -> Output {
        let mut parts = line.split_whitespace();
        let command = parts.next().expect("a command");
        Command::new(env!("CARGO_BIN_EXE_ebb"))
            .current_dir(self.dir.path())
            .arg(command)
            .args(["--model".as_ref(), model.as_os_str()])
            .args([
                "--load-format",
                "dummy",
                "--threads",
                "2",
                "--kv-memory",
                "64MiB",
            ])
            .args(parts)
            .output()
            .expect("ebb runs")
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        self.run_with(self.model.path(), line)
    }

    /// Standard error of a command that succeeds.
    pub(crate) fn good(&self, line: &str) -> String {
        let output = self.run(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {said}");
        said
    }

    /// The last line of one that fails.
    pub(crate) fn bad(&self, line: &str) -> String {
        failure(line, &self.run(line))
    }

    pub(crate) fn profile(&self, name: &str) -> Value {
        let text = std::fs::read_to_string(self.path(name)).expect("a profile");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Scores the text with a specification: (mean_bits_sealed, KL of the second half).
    pub(crate) fn eval(&self, spec: &str) -> (f64, f64) {
        let line = format!("eval --text text.txt --ctx 1024 --windows 1 --json --kv {spec}");
        let output = self.run(&line);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let number = |key: &str| report[key].as_f64().expect("a number");
        (number("mean_bits_sealed"), number("kl_second_half"))
    }

    pub(crate) fn losses(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).expect("figures");
        text.lines().map(str::to_owned).collect()
    }
}

pub(crate) fn failure(line: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said.lines().last().expect("a sentence").to_owned()
}

pub(crate) fn floors(profile: &Value, side: &str) -> Vec<String> {
    let floors = profile["floors"][side].as_array().expect("floors");
    floors
        .iter()
        .map(|f| f.as_str().expect("a name").to_owned())
        .collect()
}
