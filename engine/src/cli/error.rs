//! Why a command failed, in one sentence for the terminal.

use std::io;

use ebb_serving::access::AccessError;
use ebb_serving::server::{BindError, EngineStopped};
use thiserror::Error;

/// What went wrong and what to do about it.
#[derive(Debug, Error)]
pub(super) enum CliError {
    /// Flags that do not fit together, or a value out of range.
    #[error("{0}")]
    Usage(String),
    /// The model cannot be opened.
    #[error(transparent)]
    Open(#[from] ebb_models::OpenError),
    /// The device cannot be used as asked.
    #[error(transparent)]
    Device(#[from] ebb_serving::device::DeviceError),
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] ebb_serving::StartError),
    /// A KV specification means nothing, or nothing for this model.
    #[error("--kv: {0}")]
    KvSpec(#[from] ebb_serving::kv_spec::KvSpecError),
    /// A text cannot be scored.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Eval(#[from] ebb_lab::eval::EvalError),
    /// A calibration cannot keep or use its measurements.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Losses(#[from] ebb_lab::calibrate::LossesError),
    /// Gradients cannot be computed.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Gradients(#[from] ebb_lab::calibrate::GradientsError),
    /// A profile cannot be used.
    #[error(transparent)]
    Profile(#[from] ebb_serving::kv_profile::ProfileError),
    /// A trajectory log cannot be used.
    #[error(transparent)]
    Trajectory(#[from] ebb_serving::trajectory::TrajectoryError),
    /// Answers did not come out again.
    #[cfg(feature = "lab")]
    #[error("{0}")]
    Replay(String),
    /// A port is taken, or its certificate cannot be used.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Keys cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The engine thread ended by itself.
    #[error(transparent)]
    EngineStopped(#[from] EngineStopped),
    /// A server, or the engine in this process, refused or failed.
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

/// An error as a terminal may have it: a file's or a server's text in it gives no commands.
pub(super) fn printable(error: &dyn std::fmt::Display) -> String {
    let mut text = String::new();
    for c in error.to_string().chars() {
        match c {
            '\n' => text.push(c),
            c if c.is_control() => text.extend(c.escape_unicode()),
            c => text.push(c),
        }
    }
    text
}

/// The last of an error's causes: the one that says something.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_give_a_terminal_no_commands() {
        assert_eq!(
            printable(&"a \u{1b}[31mfield\u{9b}\nand ü"),
            "a \\u{1b}[31mfield\\u{9b}\nand ü"
        );
    }
}
