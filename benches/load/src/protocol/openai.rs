//! OpenAI's HTTP API as Ebb, vLLM and others have it: `/v1/completions` with token ids.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::sse::Lines;
use super::{Answer, Ask, Event, Failure, Finished, Pace, Protocol, Target};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that an answer which is no stream may have.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The API does not tell how many tokens there are; any model has as many ids.
const VOCABULARY: u32 = 10_000;

/// A server with OpenAI's API. Each request that is under way has a connection of its own.
#[derive(Debug, Clone)]
pub struct OpenAi {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    key: Option<String>,
    model: Model,
}

#[derive(Debug, Clone, Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    owned_by: String,
    #[serde(default)]
    max_model_len: Option<u32>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

impl OpenAi {
    /// Asks the server at `url` which model it serves. `key` is sent with every request.
    ///
    /// # Errors
    /// When nobody answers there, or not as OpenAI does.
    pub async fn connect(url: &str, key: Option<String>) -> Result<Self, Failure> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let mut api = Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            url: url.trim_end_matches('/').to_owned(),
            key,
            model: Model {
                id: String::new(),
                owned_by: String::new(),
                max_model_len: None,
            },
        };
        let response = api.call(Method::GET, "/v1/models", None).await?;
        let body = whole(response).await?;
        let models: Models = serde_json::from_slice(&body).map_err(|error| {
            let why = format!("{url}/v1/models does not answer as OpenAI's API does: {error}");
            failure("UNKNOWN", why)
        })?;
        let missing = || failure("NOT_FOUND", format!("{url} serves no model"));
        api.model = models.data.into_iter().next().ok_or_else(missing)?;
        Ok(api)
    }

    /// The response, unless it is an error.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::from(body));
        let request = request.map_err(|error| failure("INVALID_ARGUMENT", error))?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| {
            let why = format!(
                "cannot reach {} ({error}); start the server, or name another with --target",
                self.url
            );
            failure("UNAVAILABLE", why)
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = whole(response).await?;
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = said["error"]["message"].as_str();
        let message = message.map_or_else(|| format!("HTTP {status}"), str::to_owned);
        Err(failure(code(status), message))
    }
}

impl Protocol for OpenAi {
    type Answer = Stream;

    async fn target(&self) -> Result<Target, Failure> {
        Ok(Target {
            protocol: "openai".into(),
            server: self.model.owned_by.clone(),
            model: self.model.id.clone(),
            max_context: self.model.max_model_len.unwrap_or(u32::MAX),
            vocab_size: VOCABULARY,
            ..Target::default()
        })
    }

    async fn generate(&self, ask: Ask, _: Pace) -> Result<Stream, Failure> {
        let deadline = ask.timeout.map(|limit| Instant::now() + limit);
        let body = body(&self.model.id, &ask);
        let called = self.call(Method::POST, "/v1/completions", Some(&body));
        let response = until(deadline, called).await??;
        Ok(Stream {
            body: response.into_body(),
            lines: Lines::default(),
            deadline,
            received: 0,
            end: None,
            usage: None,
            told_cached: false,
        })
    }
}

/// Waits no longer than to the deadline: the API has no field for it.
async fn until<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Result<T, Failure> {
    let Some(deadline) = deadline else {
        return Ok(future.await);
    };
    let late = |_| {
        failure(
            "DEADLINE_EXCEEDED",
            "the answer took longer than --timeout-ms",
        )
    };
    tokio::time::timeout_at(deadline, future)
        .await
        .map_err(late)
}

/// What is sent. vLLM and Ebb know all of these fields; others pass over those that they do not.
fn body(model: &str, ask: &Ask) -> Value {
    let mut body = json!({
        "model": model,
        "prompt": ask.prompt,
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        // The model's own defaults may restrict sampling; a load test means plain work.
        "top_k": 0,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "seed": ask.seed,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
        "return_token_ids": true,
    });
    if let Some(bits) = ask.min_kv_bits {
        body["min_kv_bits"] = json!(bits);
    }
    body
}

/// A stream of chunks.
#[derive(Debug)]
pub struct Stream {
    body: Incoming,
    lines: Lines,
    deadline: Option<Instant>,
    /// Tokens so far.
    received: u32,
    /// Of the last chunk of the choice.
    end: Option<Bits>,
    usage: Option<Usage>,
    told_cached: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Chunk {
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Wrong>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    text: String,
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
    ebb: Option<Bits>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct Bits {
    lowest_kv_bits: Option<u32>,
    mean_kv_bits: Option<f32>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct Usage {
    completion_tokens: u32,
    prompt_tokens_details: Option<PromptTokens>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct PromptTokens {
    cached_tokens: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wrong {
    message: String,
    code: Value,
}

impl Answer for Stream {
    async fn next(&mut self) -> Option<Result<Event, Failure>> {
        loop {
            while let Some(data) = self.lines.next() {
                if data == "[DONE]" {
                    continue;
                }
                match self.read(&data) {
                    Ok(Some(event)) => return Some(Ok(event)),
                    Ok(None) => {}
                    Err(failure) => return Some(Err(failure)),
                }
            }
            match until(self.deadline, self.body.frame()).await {
                Err(late) => return Some(Err(late)),
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.lines.push(data);
                    }
                }
                Ok(Some(Err(error))) => return Some(Err(failure("UNAVAILABLE", error))),
                Ok(None) => return self.finish().map(Ok),
            }
        }
    }
}

impl Stream {
    /// What a chunk tells, if that is anything.
    fn read(&mut self, data: &str) -> Result<Option<Event>, Failure> {
        let chunk: Chunk = serde_json::from_str(data)
            .map_err(|error| failure("UNKNOWN", format!("a chunk cannot be read: {error}")))?;
        if let Some(Wrong { message, code }) = chunk.error {
            let name = match code.as_str() {
                Some("queue_full" | "slow_reader" | "client_memory_full") => "RESOURCE_EXHAUSTED",
                Some("deadline_exceeded") => "DEADLINE_EXCEEDED",
                Some("shutting_down") => "UNAVAILABLE",
                _ => "INTERNAL",
            };
            return Err(failure(name, message));
        }
        self.usage = chunk.usage.or(self.usage);
        let Some(choice) = chunk.choices.into_iter().next() else {
            return Ok(None);
        };
        if choice.finish_reason.is_some() {
            self.end = Some(choice.ebb.unwrap_or_default());
        }
        // Who tells no ids sends a chunk for each token that has a text.
        let ids = choice
            .token_ids
            .unwrap_or_else(|| match choice.text.as_str() {
                "" => Vec::new(),
                _ => vec![0],
            });
        if ids.is_empty() {
            return Ok(None);
        }
        self.received += ids.len() as u32;
        Ok(Some(Event::Tokens(ids)))
    }

    /// What is told at the end: how many tokens of the prompt were cached, and how it ended.
    fn finish(&mut self) -> Option<Event> {
        let usage = self.usage.unwrap_or_default();
        let cached = usage.prompt_tokens_details.and_then(|of| of.cached_tokens);
        if let Some(cached_tokens) = cached.filter(|_| !self.told_cached) {
            self.told_cached = true;
            return Some(Event::Started { cached_tokens });
        }
        let bits = self.end.take()?;
        let told = self.usage.map(|usage| usage.completion_tokens);
        Some(Event::Finished(Finished {
            completion_tokens: told.unwrap_or(self.received),
            lowest_kv_bits: bits.lowest_kv_bits,
            mean_kv_bits: bits.mean_kv_bits,
        }))
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, Failure> {
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect();
    let body = body.await.map_err(|error| failure("UNAVAILABLE", error))?;
    Ok(body.to_bytes())
}

fn failure(code: &str, message: impl Display) -> Failure {
    Failure {
        code: code.to_owned(),
        message: message.to_string(),
    }
}

/// What gRPC calls it, so that outcomes have one name whatever the protocol.
fn code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 | 413 | 422 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        408 | 504 => "DEADLINE_EXCEEDED",
        409 => "ABORTED",
        429 => "RESOURCE_EXHAUSTED",
        500 => "INTERNAL",
        502 | 503 => "UNAVAILABLE",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_asks_for_plain_work() {
        let ask = Ask {
            prompt: vec![5, 6],
            max_tokens: 9,
            temperature: 0.0,
            seed: 3,
            min_kv_bits: Some(8),
            timeout: None,
        };
        let body = body("m", &ask);
        assert_eq!(body["prompt"], json!([5, 6]));
        assert_eq!(
            (&body["max_tokens"], &body["ignore_eos"]),
            (&json!(9), &json!(true))
        );
        assert_eq!(body["min_kv_bits"], json!(8));
    }

    #[test]
    fn statuses_are_counted_under_grpcs_names() {
        let named = [
            (400, "INVALID_ARGUMENT"),
            (429, "RESOURCE_EXHAUSTED"),
            (503, "UNAVAILABLE"),
        ];
        for (status, name) in named {
            assert_eq!(code(StatusCode::from_u16(status).unwrap()), name);
        }
    }
}
