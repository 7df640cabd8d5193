//! Why a conversation has no text.

use std::error::Error as _;

use minijinja::{Error, ErrorKind};
use thiserror::Error;

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
}

/// What `raise_exception` was called with.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

impl ChatError {
    pub(super) fn of(error: &Error) -> Self {
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(Raised(message)) = cause.downcast_ref() {
                return Self::Refused(message.clone());
            }
            source = cause.source();
        }
        match error.kind() {
            ErrorKind::OutOfFuel => Self::TooManySteps,
            _ => Self::Failed(sentence(error)),
        }
    }
}

/// What happened, and in which line.
pub(super) fn sentence(error: &Error) -> String {
    let what = error.detail().map_or_else(
        || error.kind().to_string(),
        |detail| format!("{}: {detail}", error.kind()),
    );
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}
