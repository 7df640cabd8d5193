//! OpenAI's error object, and how this API spells a request's fields.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use crate::core::Field;
use crate::http::{Problem, error};
use crate::sampling::Param;

#[derive(Serialize)]
pub(super) struct Body<'a> {
    error: Object<'a>,
}

#[derive(Serialize)]
struct Object<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

/// The object alone.
pub(super) fn body(problem: &Problem) -> Body<'_> {
    let kind = match problem.status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    };
    Body {
        error: Object {
            message: &problem.message,
            r#type: kind,
            param: problem.param.as_deref(),
            code: problem.code,
        },
    }
}

/// The response that tells of a problem.
pub(crate) fn shape(problem: &Problem) -> Response {
    error(problem, &body(problem))
}

/// How a request spelled what has more than one spelling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spelling {
    /// Where the text to continue is: `messages` or `prompt`.
    pub(super) prompt: &'static str,
    /// The prompt's index, where it is one of a list.
    pub(super) index: Option<usize>,
    pub(super) max_tokens: &'static str,
    pub(super) logprobs: &'static str,
    /// Whether there is one stop string that is not in a list.
    pub(super) single_stop: bool,
}

impl Spelling {
    /// The name of a field.
    pub(super) fn path(&self, field: Field) -> String {
        let prompt = || match self.index {
            Some(i) => format!("{}[{i}]", self.prompt),
            None => self.prompt.to_owned(),
        };
        match field {
            Field::Prompt | Field::Text | Field::TokenIds => prompt(),
            Field::TokenId(i) => format!("{}[{i}]", prompt()),
            Field::Chat | Field::ChatMessages => self.prompt.to_owned(),
            Field::ChatRole(i) => format!("{}[{i}].role", self.prompt),
            Field::RequestId => "request_id".to_owned(),
            Field::Timeout => "timeout".to_owned(),
            Field::MinKvBits => "min_kv_bits".to_owned(),
            Field::Sampling(Param::MaxTokens) => self.max_tokens.to_owned(),
            Field::Sampling(Param::Logprobs) => self.logprobs.to_owned(),
            Field::Sampling(Param::StopString(_)) if self.single_stop => "stop".to_owned(),
            // Of these the API has the names that sampling has.
            Field::Sampling(param) => param.to_string(),
        }
    }
}
