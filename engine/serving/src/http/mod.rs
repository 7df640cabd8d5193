//! What front ends over HTTP share: JSON bodies, event streams, errors, probes and metrics.
//!
//! A front end (`openai`, `anthropic`) is a router. It reads a body ([`json`]), makes requests of
//! it, submits them ([`answers`]), and answers with one JSON object or with server-sent events
//! ([`events`]). What goes wrong is a [`Problem`], which every front end writes in its own shape.

pub(crate) mod answers;
pub(crate) mod calls;
pub(crate) mod events;
pub(crate) mod json;
pub(crate) mod keys;
pub(crate) mod messages;
pub(crate) mod origins;
pub(crate) mod probes;
mod problem;
pub(crate) mod values;

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

pub(crate) use problem::Problem;
use serde::Serialize;

use crate::front_end::Engine;

/// How a front end writes a problem.
pub(crate) type Shape = fn(&Problem) -> Response;

/// One JSON object as a body.
pub(crate) fn object(value: &impl Serialize) -> Response {
    let json = HeaderValue::from_static("application/json");
    // These are structs of strings, numbers and lists: nothing of that fails.
    let text = serde_json::to_string(value).unwrap_or_default();
    ([(header::CONTENT_TYPE, json)], text).into_response()
}

/// The response that tells of a problem by this object.
pub(crate) fn error(problem: &Problem, body: &impl Serialize) -> Response {
    let mut response = (problem.status, object(body)).into_response();
    if let Some(seconds) = problem.retry_after() {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if problem.status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

/// What the routes of a front end look at.
pub(crate) struct Api<E> {
    /// Set when the model is loaded.
    engine: Arc<OnceLock<E>>,
    /// Bytes that a body may have.
    pub(crate) max_body_bytes: usize,
    /// When this server began, in seconds since 1970.
    pub(crate) started: u64,
}

impl<E> Clone for Api<E> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            max_body_bytes: self.max_body_bytes,
            started: self.started,
        }
    }
}

impl<E: Engine> Api<E> {
    pub(crate) fn new(engine: Arc<OnceLock<E>>, max_body_bytes: usize) -> Self {
        Self {
            engine,
            max_body_bytes,
            started: now(),
        }
    }

    /// The engine, once there is one.
    pub(crate) fn engine(&self) -> Result<&E, Problem> {
        let loading = || {
            let why = "the model is still being loaded; try again in a moment";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, why).code("model_loading")
        };
        self.engine.get().ok_or_else(loading)
    }

    /// The same for a request that names a model; without a name it is whatever is served.
    pub(crate) fn engine_for(&self, model: Option<&str>) -> Result<&E, Problem> {
        let engine = self.engine()?;
        match model {
            Some(name) if !engine.model().has_name(name) => {
                Err(Problem::unknown_model(name, &engine.model().name))
            }
            _ => Ok(engine),
        }
    }
}
