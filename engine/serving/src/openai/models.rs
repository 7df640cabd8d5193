//! The served model under all its names.

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;

use super::error::shape;
use crate::core::ModelInfo;
use crate::front_end::Engine;
use crate::http::{Api, Problem, object};

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The name that the others stand for.
    root: &'a str,
    parent: Option<&'a str>,
    /// Tokens of a prompt and its answer together.
    max_model_len: usize,
}

fn model<'a>(info: &'a ModelInfo, name: &'a str, created: u64) -> Model<'a> {
    Model {
        id: name,
        object: "model",
        created,
        owned_by: "ebb",
        root: &info.name,
        parent: None,
        max_model_len: info.max_context,
    }
}

/// `GET /v1/models`.
pub(super) async fn list<E: Engine>(State(api): State<Api<E>>) -> Response {
    let listed = api.engine().map(|engine| {
        let info = engine.model();
        let data = info
            .names()
            .map(|name| model(info, name, api.started))
            .collect();
        let list = List {
            object: "list",
            data,
        };
        object(&list)
    });
    listed.unwrap_or_else(|problem| shape(&problem))
}

/// `GET /v1/models/{name}`.
pub(super) async fn get<E: Engine>(
    State(api): State<Api<E>>,
    Path(name): Path<String>,
) -> Response {
    let found = api.engine().and_then(|engine| {
        let info = engine.model();
        if info.has_name(&name) {
            Ok(object(&model(info, &name, api.started)))
        } else {
            Err(Problem::unknown_model(&name, &info.name))
        }
    });
    found.unwrap_or_else(|problem| shape(&problem))
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

/// `GET /version`.
pub(super) async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    object(&Version { version })
}
