//! Reads a log of trajectories, and checks that it makes sense.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Lines};
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
        /// `configuration and tensors`, or `weights`.
        what: &'static str,
    },
}

/// Of any version.
#[derive(Deserialize)]
struct Versioned {
    ebb_trajectories: u64,
}

/// The rest of a log, line by line.
pub struct Trajectories {
    path: PathBuf,
    lines: Lines<BufReader<File>>,
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
        lines: BufReader::new(File::open(path).map_err(failed)?).lines(),
        line: 1,
        vocab,
        levels: 0,
    };
    let first = rest.lines.next().transpose().map_err(failed)?;
    let first = first.ok_or_else(|| rest.damaged("the file is empty"))?;
    let version = serde_json::from_str(&first).map_err(|e| rest.damaged(e))?;
    let Versioned { ebb_trajectories } = version;
    if ebb_trajectories != u64::from(VERSION) {
        return Err(TrajectoryError::Version {
            path: path.to_owned(),
            found: ebb_trajectories,
        });
    }
    let header: Header = serde_json::from_str(&first).map_err(|e| rest.damaged(e))?;
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

    fn parse(&self, line: &str) -> Result<Trajectory, TrajectoryError> {
        let trajectory: Trajectory = serde_json::from_str(line).map_err(|e| self.damaged(e))?;
        let check = trajectory.check(self.vocab, self.levels);
        check.map_err(|e| self.damaged(e))?;
        Ok(trajectory)
    }
}

impl Iterator for Trajectories {
    type Item = Result<Trajectory, TrajectoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.line += 1;
        Some(match self.lines.next()? {
            Ok(line) => self.parse(&line),
            Err(cause) => Err(TrajectoryError::File {
                path: self.path.clone(),
                cause,
            }),
        })
    }
}

impl Trajectory {
    /// Tokens of which the KV cache had a place: all but the answer's last.
    pub fn computed(&self) -> usize {
        (self.prompt.len() + self.tokens.len()).saturating_sub(1)
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
        let steps = self
            .steps
            .iter()
            .map(|&(tokens, times)| u64::from(tokens) * u64::from(times));
        let told = u64::from(self.cached).saturating_add(steps.fold(0, u64::saturating_add));
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
