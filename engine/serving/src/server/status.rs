//! From the engine's errors to gRPC statuses.

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::core::RequestError;

/// The status that a client receives. Invalid input also carries a `google.rpc.BadRequest` naming
/// the field.
pub fn status(error: &RequestError) -> Status {
    let message = error.to_string();
    match error {
        RequestError::Invalid {
            field,
            message: why,
        } => {
            let details = ErrorDetails::with_bad_request_violation(field, why);
            Status::with_error_details(Code::InvalidArgument, message, details)
        }
        RequestError::QueueFull { .. } | RequestError::SlowReader { .. } => {
            Status::resource_exhausted(message)
        }
        RequestError::DeadlineExceeded => Status::deadline_exceeded(message),
        RequestError::Aborted => Status::cancelled(message),
        RequestError::ShuttingDown => Status::unavailable(message),
        RequestError::Internal(_) => Status::internal(message),
    }
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
