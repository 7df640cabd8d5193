//! Why a command failed, in one sentence for the terminal.

use std::io;

use thiserror::Error;

use crate::core::RequestError;
use crate::server::ListenError;

/// What went wrong and what to do about it.
#[derive(Debug, Error)]
pub(super) enum CliError {
    /// Flags that do not fit together, or a value out of range.
    #[error("{0}")]
    Usage(String),
    /// The model or the engine did not start.
    #[error(transparent)]
    Start(#[from] crate::StartError),
    /// A KV specification means nothing, or nothing for this model.
    #[error("--kv: {0}")]
    KvSpec(#[from] crate::kv_spec::KvSpecError),
    /// A text cannot be scored.
    #[error(transparent)]
    Eval(#[from] crate::eval::EvalError),
    /// A calibration cannot keep or use its measurements.
    #[error(transparent)]
    Losses(#[from] crate::calibrate::LossesError),
    /// Gradients cannot be computed.
    #[error(transparent)]
    Gradients(#[from] crate::calibrate::GradientsError),
    /// A profile cannot be used.
    #[error(transparent)]
    Profile(#[from] crate::kv_plan::ProfileError),
    /// A trajectory log cannot be used.
    #[error(transparent)]
    Trajectory(#[from] crate::trajectory::TrajectoryError),
    /// Answers did not come out again.
    #[error("{0}")]
    Replay(String),
    /// A port is taken.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The engine refused or failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The engine thread ended by itself.
    #[error(
        "the engine stopped (see the log above); every running request was ended. Start `ebb serve` anew"
    )]
    EngineStopped,
    /// A server refused or failed.
    #[error("{0}")]
    Status(String),
    /// A server cannot be reached.
    #[error("cannot reach a server at {url} ({cause}); is `ebb serve` running there?")]
    Connect {
        /// As given.
        url: String,
        /// The innermost reason.
        cause: String,
    },
    /// A file or a stream.
    #[error("cannot {action}: {source}")]
    Io {
        /// As in "read prompt.txt".
        action: String,
        /// What the system said.
        source: io::Error,
    },
}

impl CliError {
    /// For `map_err` on input and output.
    pub(super) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action: action.into(),
            source,
        }
    }

    /// Whether the reader of our output went away (`ebb ... | head`), which is no failure.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<tonic::Status> for CliError {
    fn from(status: tonic::Status) -> Self {
        let message = status.message();
        Self::Status(if message.is_empty() {
            format!("the server answered {}", status.code())
        } else {
            message.into()
        })
    }
}

/// The last of an error's causes: the one that says something.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
