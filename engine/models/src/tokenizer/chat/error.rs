//! Why a conversation has no text.

use thiserror::Error;

use super::jinja::{Fail, Why};

/// A chat template that cannot be used, or a conversation it has no text for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChatError {
    /// The model came without a template.
    #[error(
        "the model has no chat template, so it cannot be given chat messages; give it a prompt"
    )]
    Missing,
    /// The template cannot be read.
    #[error("the model's chat template cannot be used: {0}")]
    Template(String),
    /// The template itself says no, with its own words.
    #[error("the model's chat template refuses this conversation: {0}")]
    Refused(String),
    /// The template failed on these messages.
    #[error("the model's chat template failed on this conversation: {0}")]
    Failed(String),
    /// More instructions than a template may take.
    #[error(
        "the model's chat template takes too many steps for this conversation; send fewer messages"
    )]
    TooManySteps,
    /// More output than a template may give.
    #[error("the model's chat template makes too long a text of this conversation")]
    TooLong,
    /// More values than a template may hold.
    #[error("the model's chat template takes too much memory for this conversation")]
    TooMuchMemory,
    /// Nobody wants the text any more.
    #[error("the rendering was called off")]
    CalledOff,
}

impl ChatError {
    /// Why a template cannot be read.
    pub(super) fn of_parsing(error: Fail) -> Self {
        let (line, why) = error.into_parts();
        let problem = match why {
            Why::Error(problem) | Why::Raised(problem) => problem,
            Why::Steps | Why::TooLong | Why::Memory | Why::CalledOff => {
                "it is too large".to_owned()
            }
        };
        Self::Template(at_line(line, &problem))
    }

    /// Why a rendering failed.
    pub(super) fn of_rendering(error: Fail) -> Self {
        match error.into_parts() {
            (line, Why::Error(problem)) => Self::Failed(at_line(line, &problem)),
            (_, Why::Raised(message)) => Self::Refused(message),
            (_, Why::Steps) => Self::TooManySteps,
            (_, Why::TooLong) => Self::TooLong,
            (_, Why::Memory) => Self::TooMuchMemory,
            (_, Why::CalledOff) => Self::CalledOff,
        }
    }
}

fn at_line(line: u32, problem: &str) -> String {
    match line {
        0 => problem.to_owned(),
        line => format!("line {line}: {problem}"),
    }
}
