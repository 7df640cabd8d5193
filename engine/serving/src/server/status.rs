//! From the engine's errors to gRPC statuses.

use thiserror::Error;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::fields::path;
use crate::core::RequestError;

/// Why a call fails.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The engine refuses it or fails.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A part of the call that the engine never hears of is wrong.
    #[error("{field}: {message}")]
    Call {
        /// Where it is.
        field: &'static str,
        /// What was wrong with it and what is allowed.
        message: String,
    },
}

impl CallError {
    pub(super) fn call(field: &'static str, message: impl Into<String>) -> Self {
        Self::Call {
            field,
            message: message.into(),
        }
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Request(error) => status(&error),
            CallError::Call { field, message } => invalid(field, &message),
        }
    }
}

/// Bytes of a status's message. It is a header of the answer, of which clients take 8 KiB, three
/// bytes for each that is not ASCII; and it may quote a model's template.
const MESSAGE_BYTES_MAX: usize = 1024;

/// A message that a client can receive.
fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message.push('…');
    }
    message
}

/// The status that a client receives.
pub fn status(error: &RequestError) -> Status {
    let sentence = bounded(error.to_string());
    match error {
        RequestError::Invalid { field, message } => invalid(&path(*field), message),
        RequestError::QueueFull { .. }
        | RequestError::SlowReader { .. }
        | RequestError::TextQueueFull { .. }
        | RequestError::ClientMemory(_) => Status::resource_exhausted(sentence),
        RequestError::DeadlineExceeded => Status::deadline_exceeded(sentence),
        RequestError::Aborted => Status::cancelled(sentence),
        RequestError::ShuttingDown => Status::unavailable(sentence),
        RequestError::Internal(_) => Status::internal(sentence),
    }
}

/// Invalid input also carries a `google.rpc.BadRequest` naming the field.
fn invalid(field: &str, message: &str) -> Status {
    let message = bounded(message.to_owned());
    let details = ErrorDetails::with_bad_request_violation(field, &message);
    let sentence = format!("{field}: {message}");
    Status::with_error_details(Code::InvalidArgument, sentence, details)
}

/// The name of a status code as gRPC spells it, for metrics.
pub(super) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
