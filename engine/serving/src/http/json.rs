//! Bodies of JSON on their way in: bounded, counted, and refused with the field that is wrong.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tonic::Status;

use super::Problem;
use super::values::Object;
use crate::front_end::CallMemory;

/// Beyond this a body is not parsed on the threads that serve everybody.
const INLINE_BYTES: usize = 128 * 1024;
/// Bodies that are too long are read for so many times the limit before they are refused: a client
/// that still writes would not read the refusal.
const DISCARDED: usize = 16;

/// A body that has arrived, and what it holds of the clients' memory.
pub(crate) struct Received {
    bytes: Vec<u8>,
    pub(crate) memory: Option<CallMemory>,
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn receive(request: Request, limit: usize) -> Result<Received, Problem> {
    let (mut parts, body) = request.into_parts();
    let memory = CallMemory::of(&mut parts.extensions);
    let media_type = parts.headers.get(header::CONTENT_TYPE);
    let media_type = media_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = media_type.split(';').next().unwrap_or("").trim();
    let most = limit.saturating_mul(DISCARDED);
    let bytes = collect(body, limit, most, memory.as_ref()).await?;
    if !essence.eq_ignore_ascii_case("application/json") {
        let why = "send the body as JSON, with the header Content-Type: application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    Ok(Received { bytes, memory })
}

/// Reads a body that nobody wants, if it has at most `limit` bytes: a client that still writes
/// would not read the answer.
pub(crate) async fn discard(request: Request, limit: usize) {
    let (mut parts, body) = request.into_parts();
    let memory = CallMemory::of(&mut parts.extensions);
    // The answer is the same whether the body was whole.
    let _ = collect(body, 0, limit, memory.as_ref()).await;
}

/// The bytes of a body of at most `limit` bytes. Of one that is longer, `most` are read.
async fn collect(
    mut body: Body,
    limit: usize,
    most: usize,
    memory: Option<&CallMemory>,
) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let mut length = 0_usize;
    let mut refused = None;
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.map_err(|error| unread(&error)) {
            // The client still writes: what there is no memory for is read and dropped.
            Err(full) if full.status == StatusCode::TOO_MANY_REQUESTS => {
                refused = Some(full);
                // Its frame is lost; this stands for it, and ends a body without end.
                length += INLINE_BYTES;
            }
            Err(error) => return Err(refused.unwrap_or(error)),
            Ok(frame) => {
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                length += data.len();
                if length <= limit && refused.is_none() {
                    bytes.extend_from_slice(&data);
                    continue;
                }
            }
        }
        bytes = Vec::new();
        if let Some(memory) = memory {
            memory.clear();
        }
        if length > most {
            break;
        }
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    if length <= limit {
        return Ok(bytes);
    }
    let why = format!("the body is too large; at most {limit} bytes are read");
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, why).code("body_too_large"))
}

/// What kept a body from arriving.
fn unread(error: &axum::Error) -> Problem {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(status) = error.downcast_ref::<Status>() {
            return Problem::of_body(status);
        }
        source = error.source();
    }
    Problem::new(StatusCode::BAD_REQUEST, "the body did not arrive whole")
}

impl Received {
    /// Takes `bytes` more of the clients' memory.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), Problem> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let full = |full| Problem::of(&crate::core::RequestError::ClientMemory(full), |_| None);
        memory.grow(bytes).map_err(full)
    }

    /// Reads the body with `read`, off the serving threads if it is long.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        read: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<(T, Option<CallMemory>), Problem> {
        // The texts and numbers in it, once more.
        self.grow(2 * self.bytes.len())?;
        let Self { bytes, memory } = self;
        let parsed = if bytes.len() <= INLINE_BYTES {
            read(&bytes)?
        } else {
            let parsed = tokio::task::spawn_blocking(move || read(&bytes)).await;
            parsed.map_err(|_| Problem::bug())??
        };
        Ok((parsed, memory))
    }
}

/// The object that a body holds; fields that it does not know are passed over.
pub(crate) fn object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    parse(bytes).map(|Object(object)| object)
}

/// A value of any kind.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value: T = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        wrong(error.inner(), Some(path).filter(|path| path != "."))
    })?;
    json.end().map_err(|error| wrong(&error, None))?;
    Ok(value)
}

fn wrong(error: &serde_json::Error, path: Option<String>) -> Problem {
    let said = error.to_string();
    match (error.classify(), path) {
        (Category::Data, Some(path)) => {
            // Where in the body it is says the path, in the client's terms.
            let place = format!(" at line {} column {}", error.line(), error.column());
            Problem::invalid(path, said.strip_suffix(&place).unwrap_or(&said))
        }
        (Category::Data, None) => Problem::new(
            StatusCode::BAD_REQUEST,
            format!("the body is wrong: {said}"),
        ),
        _ => {
            let why = format!("the body is not JSON: {said}");
            Problem::new(StatusCode::BAD_REQUEST, why).code("invalid_json")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Body {
        n: Option<u32>,
        list: Vec<Object<Item>>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Item {
        role: String,
    }

    #[test]
    fn the_field_that_is_wrong_is_named() {
        let param = |text: &str| {
            let problem = object::<Body>(text.as_bytes()).unwrap_err();
            assert_eq!(problem.status, StatusCode::BAD_REQUEST);
            assert!(!problem.message.contains("line 1") || problem.param.is_none());
            problem.param
        };
        assert_eq!(param(r#"{"n": "two"}"#).as_deref(), Some("n"));
        let inner = r#"{"list": [{"role": "a"}, {"role": 7}]}"#;
        assert_eq!(param(inner).as_deref(), Some("list[1].role"));
        for item in ["{}", "[\"a\"]", "7"] {
            let body = format!("{{\"list\": [{item}]}}");
            assert_eq!(param(&body).as_deref(), Some("list[0]"));
        }
        for text in [
            "",
            "{",
            "[1, 2",
            "{} {}",
            "nonsense",
            "\u{feff}{}",
            "[]",
            "7",
        ] {
            assert_eq!(param(text), None, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(param(&deep), None);
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        let body: Body = object(br#"{"other": {"deep": [1, 2]}, "n": 3}"#).unwrap();
        assert_eq!(body.n, Some(3));
    }
}
