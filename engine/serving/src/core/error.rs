//! What can go wrong with one request, as its client will hear it.

use thiserror::Error;

use super::Field;
use crate::client_memory::ClientMemoryFull;

/// Why a request ended without an answer. Every text says what was wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// A parameter is outside its range; gRPC `INVALID_ARGUMENT`.
    #[error("{field}: {message}")]
    Invalid {
        /// The field.
        field: Field,
        /// What was wrong with it and what is allowed.
        message: String,
    },
    /// The waiting queue is full; gRPC `RESOURCE_EXHAUSTED`.
    #[error("the server's queue is full ({limit} requests); try again later or on another replica")]
    QueueFull {
        /// Requests that may be waiting and running together.
        limit: usize,
    },
    /// Too many texts wait to be tokenised; gRPC `RESOURCE_EXHAUSTED`.
    #[error(
        "{limit} texts are waiting to be tokenised, which is as many as may; try again later or on \
         another replica"
    )]
    TextQueueFull {
        /// Texts that may be waiting.
        limit: usize,
    },
    /// The reader let too much output pile up; gRPC `RESOURCE_EXHAUSTED`.
    #[error(
        "the client reads too slowly: more than {limit_bytes} bytes of output were waiting; the \
         request was cancelled"
    )]
    SlowReader {
        /// Bytes that one stream may hold.
        limit_bytes: usize,
    },
    /// Clients hold as much memory as they may; gRPC `RESOURCE_EXHAUSTED`.
    #[error(transparent)]
    ClientMemory(#[from] ClientMemoryFull),
    /// The deadline passed; gRPC `DEADLINE_EXCEEDED`.
    #[error("the request's deadline passed before the answer was complete")]
    DeadlineExceeded,
    /// Aborted by a client; gRPC `CANCELLED`.
    #[error("the request was aborted")]
    Aborted,
    /// The server is draining; gRPC `UNAVAILABLE`.
    #[error("the server is shutting down and takes no new requests; send it to another replica")]
    ShuttingDown,
    /// The backend failed; gRPC `INTERNAL`.
    #[error("the engine failed while working on this request: {0}; see the server's log")]
    Internal(String),
}

impl RequestError {
    /// An [`RequestError::Invalid`] from anything that displays.
    pub fn invalid(field: Field, message: impl std::fmt::Display) -> Self {
        Self::Invalid {
            field,
            message: message.to_string(),
        }
    }
}
