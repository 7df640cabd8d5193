//! Anthropic's Messages API over HTTP: `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//!
//! The header `x-api-key` is a key, where keys are asked for; `anthropic-version` is let pass.
//! Unknown fields are ignored; wrong
//! ones, and those that ask for what Ebb does not have, get Anthropic's error object.

mod answer;
mod error;
mod request;

#[cfg(test)]
mod tests;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::post;
use serde::Serialize;

use crate::core::RequestError;
use crate::front_end::{Engine, new_name};
use crate::http::answers::Answers;
use crate::http::events::respond;
use crate::http::{Api, Problem, json, object};

use answer::{Message, Stream};
pub(crate) use error::shape;
use error::spelled;
use request::Messages;

/// The fields of a request, for the test of the document that lists them.
#[cfg(test)]
pub(crate) use request::Messages as Fields;

/// The routes.
pub(crate) fn router<E: Engine>(api: &Api<E>) -> Router {
    Router::new()
        .route("/v1/messages", post(create::<E>))
        .route("/v1/messages/count_tokens", post(count::<E>))
        .with_state(api.clone())
}

async fn create<E: Engine>(State(api): State<Api<E>>, request: Request) -> Response {
    let response = answer(api, request).await;
    response.unwrap_or_else(|problem| shape(&problem))
}

async fn answer<E: Engine>(api: Api<E>, request: Request) -> Result<Response, Problem> {
    let received = json::receive(request, api.max_body_bytes).await?;
    let (mut body, memory) = received.read(json::object::<Messages>).await?;
    let engine = api.engine_for(body.model.as_deref())?.clone();
    let streams = body.streams();
    let model = body.model.take();
    let request = body.request(engine.default_sampling())?;
    let answers = Answers::submit(&engine, vec![request], memory.as_ref()).await;
    let answers = answers.map_err(|(_, error)| refused(&error))?;
    // The body is used up; the answer has an account of its own.
    if let Some(memory) = &memory {
        memory.clear();
    }
    let model = model.unwrap_or_else(|| engine.model().name.clone());
    let head = Message::new(new_name("msg_"), model);
    if streams {
        return Ok(respond(answers, Stream::new(head), memory));
    }
    let answers = answers.collect(1, 1, memory.as_ref()).await;
    let answers = answers.map_err(|error| refused(&error))?;
    Ok(object(&head.whole(answers)))
}

fn refused(error: &RequestError) -> Problem {
    Problem::of(error, |field| Some(spelled(field)))
}

#[derive(Serialize)]
struct Count {
    input_tokens: usize,
}

async fn count<E: Engine>(State(api): State<Api<E>>, request: Request) -> Response {
    let count = tokens(api, request).await;
    count.unwrap_or_else(|problem| shape(&problem))
}

async fn tokens<E: Engine>(api: Api<E>, request: Request) -> Result<Response, Problem> {
    let received = json::receive(request, api.max_body_bytes).await?;
    let (body, memory) = received.read(json::object::<Messages>).await?;
    let engine = api.engine_for(body.model.as_deref())?.clone();
    let prompt = body.prompt()?;
    let ids = engine.tokenize(prompt, true).await;
    let ids = ids.map_err(|error| refused(&error))?;
    if let Some(memory) = &memory {
        let full = memory.grow(size_of_val(&ids[..]));
        full.map_err(|full| refused(&RequestError::ClientMemory(full)))?;
    }
    let input_tokens = ids.len();
    Ok(object(&Count { input_tokens }))
}
