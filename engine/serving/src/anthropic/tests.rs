//! The shapes of answers and errors, from a scripted engine and without sockets.

use std::sync::{Arc, OnceLock};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tonic::codegen::Service as _;

use super::*;
use crate::front_end::fake::Fake;

async fn ask(path: &str, body: Value) -> (StatusCode, String) {
    let engine = Arc::new(OnceLock::from(Fake::new()));
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()));
    let response = router(&Api::new(engine, 10_000))
        .call(request.unwrap())
        .await
        .unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn messages(script: &str, more: Value) -> Value {
    let mut body = json!({"max_tokens": 10, "messages": [{"role": "user", "content": script}]});
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

#[tokio::test]
async fn an_answer_is_one_message() {
    let system = json!([{"type": "text", "text": "Be brief."}]);
    let body = messages(
        "say",
        json!({"model": "org/fake", "system": system, "top_k": 5}),
    );
    let (status, text) = ask("/v1/messages", body).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let mut answer: Value = serde_json::from_str(&text).unwrap();
    assert!(answer["id"].take().as_str().unwrap().starts_with("msg_"));
    let whole = json!({
        "id": null,
        "type": "message",
        "role": "assistant",
        "model": "org/fake",
        "content": [{"type": "text", "text": "Hé!"}],
        "stop_reason": "end_turn",
        "stop_sequence": null,
        "ebb": {"lowest_kv_bits": 4, "mean_kv_bits": 5.25},
        "usage": {
            "input_tokens": 2,
            "cache_read_input_tokens": 1,
            "cache_creation_input_tokens": 0,
            "output_tokens": 4,
        },
    });
    assert_eq!(answer, whole);
    let (_, text) = ask(
        "/v1/messages",
        messages("say", json!({"stop_sequences": ["x"]})),
    )
    .await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["stop_reason"], "stop_sequence");
    assert_eq!(answer["stop_sequence"], "x");
}

#[tokio::test]
async fn a_streams_events_come_in_anthropics_order() {
    let (_, text) = ask("/v1/messages", messages("say", json!({"stream": true}))).await;
    let events = text.split_terminator("\n\n").map(|event| {
        let event = event.strip_prefix("event: ").expect(event);
        let (name, data) = event.split_once("\ndata: ").expect(event);
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    });
    let events: Vec<Value> = events.collect();
    let mut names: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    // A reader that is late gets pieces together.
    names.dedup();
    let order = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, order);
    assert_eq!(events[0]["message"]["content"], json!([]));
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 2);
    let texts = events
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(texts.collect::<String>(), "Hé!");
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "end_turn");
    assert_eq!(end["usage"]["output_tokens"], 4);
    let (_, text) = ask("/v1/messages", messages("vanish", json!({"stream": true}))).await;
    assert!(
        text.contains("event: error\ndata: {\"type\":\"error\""),
        "{text}"
    );
}

#[tokio::test]
async fn errors_have_anthropics_shape() {
    let error = async |body: Value| {
        let (status, text) = ask("/v1/messages", body).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["type"], "error");
        let error = &answer["error"];
        (
            status.as_u16(),
            error["type"].as_str().unwrap().to_owned(),
            error["message"].as_str().unwrap().to_owned(),
        )
    };
    for (more, param) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "messages[0]",
        ),
        (json!({"stop_sequences": [""]}), "stop_sequences[0]"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"tools": [{"name": "f"}]}), "tools"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            "thinking",
        ),
        (json!({"system": 7}), "system"),
    ] {
        let (status, kind, message) = error(messages("say", more)).await;
        assert_eq!(
            (status, kind.as_str()),
            (400, "invalid_request_error"),
            "{message}"
        );
        assert!(message.starts_with(param), "{message}");
    }
    let full = error(messages("full", json!({}))).await;
    assert_eq!((full.0, full.1.as_str()), (429, "rate_limit_error"));
    let unknown = error(messages("say", json!({"model": "other"}))).await;
    assert_eq!((unknown.0, unknown.1.as_str()), (404, "not_found_error"));
    let broken = error(messages("broken", json!({}))).await;
    assert_eq!((broken.0, broken.1.as_str()), (500, "api_error"));
}

#[tokio::test]
async fn tokens_are_counted_without_an_answer() {
    let mut body = messages("hello", json!({}));
    body.as_object_mut().unwrap().remove("max_tokens");
    let (status, text) = ask("/v1/messages/count_tokens", body).await;
    assert_eq!(
        (status, text.as_str()),
        (StatusCode::OK, r#"{"input_tokens":5}"#)
    );
}
