//! What goes wrong with a call over HTTP.

use axum::http::StatusCode;
use tonic::{Code, Status};

use crate::access::Denied;
use crate::core::{Field, RequestError};

/// The longest part of a client's own text that an error repeats, in characters.
const QUOTED_CHARS: usize = 300;

/// Why a call fails, before a front end writes it in its own shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// A sentence: what was wrong, and what to do.
    pub(crate) message: String,
    /// The field that is wrong, as the front end spells it.
    pub(crate) param: Option<String>,
    /// A word for programs.
    pub(crate) code: Option<&'static str>,
    /// Seconds after which the same call may succeed, where they are known.
    after: Option<u32>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: shortened(message.into()),
            param: None,
            code: None,
            after: None,
        }
    }

    /// A field that is wrong.
    pub(crate) fn invalid(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let param = param.into();
        Self {
            param: Some(param.clone()),
            ..Self::new(StatusCode::BAD_REQUEST, format!("{param}: {message}"))
        }
    }

    /// A field that asks for what Ebb does not have yet.
    pub(crate) fn unsupported(param: impl Into<String>, what: &str) -> Self {
        Self::invalid(param, format!("{what} not supported yet; leave it out"))
            .code("unsupported_parameter")
    }

    pub(crate) fn unknown_model(asked: &str, served: &str) -> Self {
        let asked: String = asked.chars().take(QUOTED_CHARS).collect();
        let message =
            format!("the model `{asked}` does not exist here; this server has `{served}`");
        Self {
            param: Some("model".to_owned()),
            ..Self::new(StatusCode::NOT_FOUND, message)
        }
        .code("model_not_found")
    }

    /// A bug ended the call.
    pub(crate) fn bug() -> Self {
        let why = "a bug in the server ended this call; see its log";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, why)
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }

    /// What the engine says. `spell` names a field, if the client gave it.
    pub(crate) fn of(error: &RequestError, spell: impl FnOnce(Field) -> Option<String>) -> Self {
        let status = match error {
            RequestError::Invalid { field, message } => {
                return match spell(*field) {
                    Some(param) => Self::invalid(param, message),
                    None => Self::new(StatusCode::BAD_REQUEST, error.to_string()),
                };
            }
            // More than there is even when nobody else holds anything.
            RequestError::ClientMemory(full) if full.bytes > full.limit => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            RequestError::QueueFull { .. }
            | RequestError::TextQueueFull { .. }
            | RequestError::SlowReader { .. }
            | RequestError::ClientMemory(_) => StatusCode::TOO_MANY_REQUESTS,
            RequestError::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            RequestError::Aborted => StatusCode::CONFLICT,
            RequestError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            RequestError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let code = match error {
            RequestError::QueueFull { .. } | RequestError::TextQueueFull { .. } => "queue_full",
            RequestError::SlowReader { .. } => "slow_reader",
            RequestError::ClientMemory(_) => "client_memory_full",
            RequestError::DeadlineExceeded => "deadline_exceeded",
            RequestError::Aborted => "aborted",
            RequestError::ShuttingDown => "shutting_down",
            RequestError::Invalid { .. } | RequestError::Internal(_) => "internal_error",
        };
        Self::new(status, error.to_string()).code(code)
    }

    /// What the connection says of a body on its way in.
    pub(crate) fn of_body(status: &Status) -> Self {
        let (code, word) = match status.code() {
            Code::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, "client_memory_full"),
            Code::DeadlineExceeded => (StatusCode::REQUEST_TIMEOUT, "late_body"),
            _ => (StatusCode::BAD_REQUEST, "incomplete_body"),
        };
        Self::new(code, status.message()).code(word)
    }

    /// The call's key does not let it in.
    pub(crate) fn denied(denied: &Denied) -> Self {
        let (status, code) = match denied {
            Denied::NoKey | Denied::WrongKey => (StatusCode::UNAUTHORIZED, "invalid_api_key"),
            Denied::Concurrency { .. } | Denied::Requests { .. } | Denied::Tokens { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded")
            }
        };
        Self {
            after: denied.retry_after(),
            ..Self::new(status, denied.to_string()).code(code)
        }
    }

    /// Seconds after which the same call may succeed.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        let may_pass = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        self.after
            .or_else(|| may_pass.contains(&self.status).then_some(1))
    }
}

/// Cuts what a client's own text makes long.
fn shortened(message: String) -> String {
    match message.char_indices().nth(2 * QUOTED_CHARS) {
        Some((at, _)) => format!("{} …", &message[..at]),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_memory::ClientMemoryFull;

    #[test]
    fn every_end_has_its_status() {
        let of = |error| {
            let problem = Problem::of(&error, |_| Some("max_tokens".into()));
            (problem.status.as_u16(), problem.code, problem.retry_after())
        };
        let full = |bytes| ClientMemoryFull { limit: 10, bytes };
        let invalid = RequestError::invalid(Field::Prompt, "no");
        assert_eq!(of(invalid), (400, None, None));
        let queue = RequestError::QueueFull { limit: 3 };
        assert_eq!(of(queue), (429, Some("queue_full"), Some(1)));
        let memory = Some("client_memory_full");
        assert_eq!(of(full(5).into()), (429, memory, Some(1)));
        assert_eq!(of(full(11).into()), (413, memory, None));
        let draining = RequestError::ShuttingDown;
        assert_eq!(of(draining), (503, Some("shutting_down"), Some(1)));
        let broken = RequestError::Internal("no luck".into());
        assert_eq!(of(broken), (500, Some("internal_error"), None));
    }

    #[test]
    fn no_error_repeats_a_whole_body() {
        let long = "é".repeat(100_000);
        assert!(Problem::invalid("stop", &long).message.len() < 2000);
        assert!(Problem::unknown_model(&long, "m").message.len() < 2000);
    }
}
