//! Reads a log of trajectories, and checks that it makes sense.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use ebb_kernels::BLOCK_TOKENS;
use ebb_models::model::Identity;
use serde::Deserialize;
use thiserror::Error;

use super::{Header, Trajectory, VERSION};

/// A log that cannot be used, and what to do about it.
#[derive(Debug, Error)]
pub enum TrajectoryError {
    /// It cannot be read.
    #[error("cannot read the trajectory log {path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// A line is no trajectory, or does not agree with itself or with the model.
    #[error("{path}, line {line}, is damaged or no part of a trajectory log: {cause}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        cause: String,
    },
    /// An answer that ended before it had computed again what it had lost.
    #[error(
        "{path}, line {line}, cannot be replayed: choice {choice} of {request} lost its memory and \
         ended ({end}) before it was computed again"
    )]
    Lost {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The request's name.
        request: String,
        /// Which of its choices.
        choice: u32,
        /// How it ended.
        end: String,
    },
    /// It has another version's format.
    #[error(
        "{path} has version {found} of the trajectory log; this ebb reads {VERSION}: use the ebb \
         that wrote it"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u64,
    },
    /// Another model answered.
    #[error(
        "{path} was logged with {made_by}, and the {what} of {served} are not those; give that \
         model with --model"
    )]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The model that answered.
        made_by: String,
        /// The one at hand.
        served: String,
        /// `configuration and tensors`, `weights`, or `weights after --quantization`.
        what: &'static str,
    },
}

impl TrajectoryError {
    /// Whether only one line cannot be used, and the next may be.
    pub fn is_one_line(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Lost { .. })
    }
}

/// Of any version.
#[derive(Deserialize)]
struct Versioned {
    ebb_trajectories: u64,
}

/// The rest of a log, line by line.
pub struct Trajectories {
    path: PathBuf,
    file: BufReader<File>,
    /// Of the one read last.
    line: usize,
    vocab: usize,
    levels: usize,
}

/// Opens a log of `model`, which has so many tokens.
///
/// # Errors
/// When it cannot be read, is no log of this version, or another model's.
pub fn read(
    path: &Path,
    model: &Identity,
    vocab: usize,
) -> Result<(Header, Trajectories), TrajectoryError> {
    let failed = |cause| TrajectoryError::File {
        path: path.to_owned(),
        cause,
    };
    let mut rest = Trajectories {
        path: path.to_owned(),
        file: BufReader::new(File::open(path).map_err(failed)?),
        line: 0,
        vocab,
        levels: 0,
    };
    let first = rest.next_line().map_err(failed)?;
    let first = first.ok_or_else(|| rest.damaged("the file is empty"))?;
    let version = serde_json::from_slice(&first).map_err(|e| rest.damaged(e))?;
    let Versioned { ebb_trajectories } = version;
    if ebb_trajectories != u64::from(VERSION) {
        return Err(TrajectoryError::Version {
            path: path.to_owned(),
            found: ebb_trajectories,
        });
    }
    let header: Header = serde_json::from_slice(&first).map_err(|e| rest.damaged(e))?;
    if let Some(differs) = header.model.differs_from(model) {
        return Err(TrajectoryError::OtherModel {
            path: path.to_owned(),
            made_by: header.model.name,
            served: model.name.clone(),
            what: differs.what,
        });
    }
    rest.levels = header.levels.len();
    Ok((header, rest))
}

impl Trajectories {
    fn damaged(&self, cause: impl std::fmt::Display) -> TrajectoryError {
        TrajectoryError::Damaged {
            path: self.path.clone(),
            line: self.line,
            cause: cause.to_string(),
        }
    }

    /// The next one that is not empty. It need not be text: a line may be half a line.
    fn next_line(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            let mut line = Vec::new();
            if self.file.read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    fn parse(&self, line: &[u8]) -> Result<Trajectory, TrajectoryError> {
        let trajectory: Trajectory = serde_json::from_slice(line).map_err(|e| self.damaged(e))?;
        if trajectory.earlier > 0 && trajectory.told() < trajectory.computed() as u64 {
            return Err(TrajectoryError::Lost {
                path: self.path.clone(),
                line: self.line,
                request: trajectory.request,
                choice: trajectory.choice,
                end: trajectory.end,
            });
        }
        let check = trajectory.check(self.vocab, self.levels);
        check.map_err(|e| self.damaged(e))?;
        Ok(trajectory)
    }
}

impl Iterator for Trajectories {
    type Item = Result<Trajectory, TrajectoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_line() {
            Ok(line) => Some(self.parse(&line?)),
            Err(cause) => Some(Err(TrajectoryError::File {
                path: self.path.clone(),
                cause,
            })),
        }
    }
}

impl Trajectory {
    /// Tokens of which the KV cache had a place: all but the answer's last.
    pub fn computed(&self) -> usize {
        (self.prompt.len() + self.tokens.len()).saturating_sub(1)
    }

    /// Tokens that it tells of, cached ones included.
    fn told(&self) -> u64 {
        let steps = self.steps.iter();
        let tokens = steps.map(|&(tokens, times)| u64::from(tokens) * u64::from(times));
        tokens.fold(u64::from(self.cached), u64::saturating_add)
    }

    /// Whether it agrees with itself, for a model of so many tokens and a shrink order of so many
    /// levels besides 16 bit.
    fn check(&self, vocab: usize, levels: usize) -> Result<(), String> {
        let computed = self.computed();
        let mut all = self.prompt.iter().chain(&self.tokens);
        if let Some(token) = all.find(|t| **t as usize >= vocab) {
            return Err(format!("the model has no token {token}"));
        }
        if self.prompt.is_empty() || self.tokens.is_empty() {
            return Err("the prompt or the answer is empty".into());
        }
        if let Err(problem) = self.sampling.clone().validate(vocab) {
            return Err(problem.to_string());
        }
        if !self.logprobs.is_empty() && self.logprobs.len() != self.tokens.len() {
            return Err("there are not as many log-probabilities as tokens".into());
        }
        if self.earlier as usize > self.tokens.len()
            || self.cached as usize > self.prompt.len() + self.tokens.len()
        {
            return Err("it tells of more tokens than there are".into());
        }
        if self
            .steps
            .iter()
            .any(|(tokens, times)| *tokens == 0 || *times == 0)
        {
            return Err("a step has no tokens".into());
        }
        let told = self.told();
        if told < computed as u64 {
            return Err(format!("its steps compute {told} tokens of {computed}"));
        }
        let mut last = 0;
        for &(before, block, to) in &self.moves {
            if before < last {
                return Err("its moves are not in order".into());
            }
            last = before;
            if usize::from(to) > levels {
                return Err(format!("a block moves to level {to}; there are {levels}"));
            }
            if (u64::from(block) + 1) * BLOCK_TOKENS as u64 > u64::from(before) {
                return Err(format!(
                    "block {block} moves before token {before}, when it is not full yet"
                ));
            }
        }
        Ok(())
    }
}
