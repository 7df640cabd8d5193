//! `GET /tokenizer_info`, vLLM's: what a client needs to use `/tokenize` in place of a tokenizer of
//! its own, as lm-eval does.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::error::shape;
use crate::front_end::Engine;
use crate::http::{Api, object};

/// Names as in tokenizer_config.json; null for a token that the model does not have.
#[derive(Serialize)]
struct TokenizerInfo {
    tokenizer_class: &'static str,
    bos_token: Option<String>,
    eos_token: Option<String>,
    unk_token: Option<String>,
    model_max_length: usize,
}

/// Answers a call.
pub(super) async fn get<E: Engine>(State(api): State<Api<E>>) -> Response {
    let told = api.engine().map(|engine| {
        let model = engine.model();
        let text = |id: Option<u32>| {
            let bytes = engine.token_bytes(id?);
            Some(String::from_utf8_lossy(bytes).into_owned())
        };
        object(&TokenizerInfo {
            tokenizer_class: "ebb",
            bos_token: text(model.special.bos),
            eos_token: text(model.special.eos),
            unk_token: text(model.special.unk),
            model_max_length: model.max_context,
        })
    });
    told.unwrap_or_else(|problem| shape(&problem))
}
