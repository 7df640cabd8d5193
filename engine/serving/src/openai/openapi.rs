//! `GET /openapi.json`: this API, told in the form that tools read.

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;

/// The document. A test compares its fields with those of the request types.
const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn document() -> impl IntoResponse {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], DOCUMENT)
}
