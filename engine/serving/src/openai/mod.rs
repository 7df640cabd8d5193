//! The OpenAI API over HTTP, with vLLM's additions, and vLLM's helpers beside it.
//!
//! | route | what |
//! |---|---|
//! | `POST /v1/chat/completions` | chat messages |
//! | `POST /v1/completions` | text or token ids, one prompt or several |
//! | `POST /v1/responses` | text messages; nothing is stored |
//! | `GET /v1/models`, `GET /v1/models/{name}` | the served names |
//! | `POST /tokenize`, `POST /detokenize`, `GET /tokenizer_info` | vLLM's |
//! | `GET /version`, `GET /openapi.json` | this program, this API |
//! | `POST /v1/embeddings` | 404: Ebb generates text |
//!
//! Unknown fields are ignored. Wrong ones, and those that ask for what Ebb does not have, get
//! OpenAI's error object with the field in `param`.

mod chat;
mod choice;
mod common;
mod completions;
mod error;
mod logprobs;
mod models;
mod openapi;
mod prompts;
mod responses;
mod tokenizer_info;
mod tokens;
mod usage;

#[cfg(test)]
mod tests;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};

use crate::front_end::Engine;
use crate::http::{Api, Problem};

pub(crate) use error::shape;

/// The routes.
pub(crate) fn router<E: Engine>(api: &Api<E>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create::<E>))
        .route("/v1/completions", post(completions::create::<E>))
        .route("/v1/responses", post(responses::create::<E>))
        .route("/v1/models", get(models::list::<E>))
        .route("/v1/models/{*name}", get(models::get::<E>))
        .route("/v1/embeddings", post(no_embeddings))
        .route("/tokenize", post(tokens::tokenize::<E>))
        .route("/detokenize", post(tokens::detokenize::<E>))
        .route("/tokenizer_info", get(tokenizer_info::get::<E>))
        .route("/version", get(models::version))
        .route("/openapi.json", get(openapi::document))
        .with_state(api.clone())
}

async fn no_embeddings() -> Response {
    let why = "Ebb generates text and makes no embeddings; ask a server of an embedding model";
    shape(&Problem::new(StatusCode::NOT_FOUND, why).code("no_embeddings"))
}

/// The answer to a path that is none.
pub(crate) async fn unknown_path(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let why = format!("{method} {path} is not of this API; GET /openapi.json lists what is");
    shape(&Problem::new(StatusCode::NOT_FOUND, why).code("unknown_url"))
}

/// The answer to a path that is one, with another method.
pub(crate) async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let why = format!("{path} cannot be asked with {method}; GET /openapi.json lists what can");
    shape(&Problem::new(StatusCode::METHOD_NOT_ALLOWED, why).code("method_not_supported"))
}
