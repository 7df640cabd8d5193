//! Anthropic's error object, and how its API spells a request's fields.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use crate::core::Field;
use crate::http::{Problem, error};
use crate::sampling::Param;

#[derive(Serialize)]
pub(super) struct Body<'a> {
    r#type: &'static str,
    error: Object<'a>,
    request_id: Option<()>,
}

#[derive(Serialize)]
struct Object<'a> {
    r#type: &'static str,
    message: &'a str,
}

/// The object alone.
pub(super) fn body(problem: &Problem) -> Body<'_> {
    let kind = match problem.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    Body {
        r#type: "error",
        error: Object {
            r#type: kind,
            message: &problem.message,
        },
        request_id: None,
    }
}

/// The response that tells of a problem.
pub(crate) fn shape(problem: &Problem) -> Response {
    error(problem, &body(problem))
}

/// The name of a field.
pub(super) fn spelled(field: Field) -> String {
    match field {
        Field::ChatRole(i) => format!("messages[{i}].role"),
        Field::MinKvBits => "min_kv_bits".to_owned(),
        Field::RequestId => "request_id".to_owned(),
        Field::Timeout => "timeout".to_owned(),
        Field::Sampling(Param::Stop) => "stop_sequences".to_owned(),
        Field::Sampling(Param::StopString(i)) => format!("stop_sequences[{i}]"),
        // Of these the API has the names that sampling has.
        Field::Sampling(param) => param.to_string(),
        Field::Prompt
        | Field::Text
        | Field::TokenIds
        | Field::TokenId(_)
        | Field::Chat
        | Field::ChatMessages => "messages".to_owned(),
    }
}
