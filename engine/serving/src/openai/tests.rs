//! The shapes of answers and errors, from a scripted engine and without sockets.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tonic::codegen::Service as _;

use super::*;
use crate::front_end::fake::Fake;

/// What a server answers whose bodies may have so many bytes.
const BODY_BYTES: usize = 10_000;

fn api() -> (Fake, Router) {
    let fake = Fake::new();
    let engine = Arc::new(OnceLock::from(fake.clone()));
    (fake, router(&Api::new(engine, BODY_BYTES)))
}

async fn send(router: &mut Router, request: Request<Body>) -> (StatusCode, String) {
    let response = router.call(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn post_request(path: &str, body: String) -> Request<Body> {
    Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .unwrap()
}

async fn ask(path: &str, body: Value) -> (StatusCode, Value) {
    let (status, text) = send(&mut api().1, post_request(path, body.to_string())).await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// The data of a stream's events, without the last one, which is `[DONE]`.
async fn stream(path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let (status, text) = send(&mut api().1, post_request(path, body.to_string())).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let text = text.strip_suffix("data: [DONE]\n\n").expect(&text);
    let events = text.split_terminator("\n\n");
    let data = events.map(|event| event.strip_prefix("data: ").expect(event));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn chat(script: &str) -> Value {
    json!({"messages": [{"role": "user", "content": script}]})
}

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

#[tokio::test]
async fn a_chat_is_one_object() {
    let body = with(chat("say"), json!({"n": 2, "unknown": {"deep": [1]}}));
    let (status, mut answer) = ask("/v1/chat/completions", body).await;
    assert_eq!(status, StatusCode::OK);
    let id = answer["id"].take();
    assert!(id.as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].take().as_u64().unwrap() > 1_700_000_000);
    let choice = |index| {
        json!({
            "index": index,
            "message": {"role": "assistant", "content": "Hé!", "refusal": null},
            "logprobs": null,
            "finish_reason": "stop",
            "stop_reason": null,
            "ebb": {"lowest_kv_bits": 4, "mean_kv_bits": 5.25},
        })
    };
    let whole = json!({
        "id": null,
        "object": "chat.completion",
        "created": null,
        "model": "fake",
        "system_fingerprint": concat!("ebb-", env!("CARGO_PKG_VERSION")),
        "choices": [choice(0), choice(1)],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 8,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    });
    assert_eq!(answer, whole);
}

#[tokio::test]
async fn a_chats_stream_begins_with_the_role_and_ends_with_the_usage() {
    let usage = json!({"stream_options": {"include_usage": true}, "model": "org/fake"});
    let chunks = stream("/v1/chat/completions", with(chat("say"), usage)).await;
    let deltas: Vec<_> = chunks
        .iter()
        .map(|c| c["choices"][0]["delta"].clone())
        .collect();
    assert_eq!(deltas[0], json!({"role": "assistant", "content": ""}));
    let texts = deltas.iter().filter_map(|delta| delta["content"].as_str());
    assert_eq!(texts.collect::<String>(), "Hé!");
    let [.., end, usage] = &chunks[..] else {
        panic!("too few chunks")
    };
    assert_eq!(end["choices"][0]["delta"], json!({}));
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    assert_eq!(end["choices"][0]["ebb"]["lowest_kv_bits"], 4);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], 7);
    for chunk in &chunks[..chunks.len() - 1] {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(
            (&chunk["model"], &chunk["usage"]),
            (&json!("org/fake"), &Value::Null)
        );
        assert_eq!(chunk["id"], chunks[0]["id"]);
    }
    // Without the wish there is no usage, not even null.
    for chunk in stream("/v1/chat/completions", chat("say")).await {
        assert!(chunk.get("usage").is_none());
    }
    let all = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let chunks = stream("/v1/chat/completions", with(chat("say"), all)).await;
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["usage"]["prompt_tokens"] == 3)
    );
}

#[tokio::test]
async fn logprobs_of_chat_tell_every_byte() {
    let body = with(chat("say"), json!({"logprobs": true, "top_logprobs": 1}));
    let (_, whole) = ask("/v1/chat/completions", body.clone()).await;
    let content = &whole["choices"][0]["logprobs"]["content"];
    let bytes: Vec<_> = content
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["bytes"])
        .collect();
    assert_eq!(
        bytes,
        [&json!([72]), &json!([0xc3]), &json!([0xa9]), &json!([33])]
    );
    let first = json!({
        "token": "H", "logprob": -0.5, "bytes": [72],
        "top_logprobs": [{"token": "I", "logprob": -0.25, "bytes": [73]}],
    });
    assert_eq!(content[0], first);
    assert_eq!(content[1]["token"], "\u{fffd}");
    // In pieces they are the same, those of tokens without text included.
    let chunks = stream("/v1/chat/completions", body).await;
    let pieces = chunks
        .iter()
        .map(|c| &c["choices"][0]["logprobs"]["content"]);
    let pieces: Vec<_> = pieces
        .filter_map(Value::as_array)
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&Value::Array(pieces), content);
}

#[tokio::test]
async fn a_completion_repeats_its_prompt_with_log_probabilities() {
    let body = json!({"prompt": "say", "echo": true, "logprobs": 1, "max_tokens": 4,
                      "return_token_ids": true});
    let (status, answer) = ask("/v1/completions", body.clone()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "sayHé!");
    // The fake's tokens of a text begin with one that adds nothing to it, BOS.
    assert_eq!(choice["prompt_token_ids"], json!([1, 115, 97, 121]));
    assert_eq!(choice["token_ids"], json!([72, 0xc3, 0xa9, 33]));
    let logprobs = &choice["logprobs"];
    let tokens = json!(["\u{1}", "s", "a", "y", "H", "\u{fffd}", "\u{fffd}", "!"]);
    assert_eq!(logprobs["tokens"], tokens);
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert_eq!(logprobs["token_logprobs"][4], -0.5);
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][4], json!({"I": -0.25, "H": -0.5}));
    // The same in pieces.
    let chunks = stream("/v1/completions", body).await;
    let lists = |key: &str| {
        let lists = chunks.iter().map(|c| &c["choices"][0]["logprobs"][key]);
        Value::Array(
            lists
                .filter_map(Value::as_array)
                .flatten()
                .cloned()
                .collect(),
        )
    };
    for key in ["tokens", "text_offset", "token_logprobs", "top_logprobs"] {
        assert_eq!(lists(key), logprobs[key], "{key}");
    }
    let texts = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["text"].as_str());
    assert_eq!(texts.collect::<String>(), "sayHé!");
}

#[tokio::test]
async fn nothing_new_may_be_asked_for() {
    let body = json!({"prompt": "say", "echo": true, "logprobs": 1, "max_tokens": 0});
    let (_, answer) = ask("/v1/completions", body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("say"), &json!("length"))
    );
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let chunks = stream("/v1/completions", body).await;
    let texts = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["text"].as_str());
    assert_eq!(texts.collect::<String>(), "say");
}

#[tokio::test]
async fn choices_of_several_prompts_are_numbered_through() {
    let body = json!({"prompt": ["say", [115, 97, 121]], "n": 2});
    let (_, answer) = ask("/v1/completions", body.clone()).await;
    let choices = answer["choices"].as_array().unwrap();
    let indices: Vec<_> = choices
        .iter()
        .map(|choice| choice["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert!(choices.iter().all(|choice| choice["text"] == "Hé!"));
    assert_eq!(answer["usage"]["prompt_tokens"], 6);
    let mut texts = vec![String::new(); 4];
    for chunk in stream("/v1/completions", body).await {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index] += choice["text"].as_str().unwrap();
    }
    assert!(texts.iter().all(|text| text == "Hé!"));
}

#[tokio::test]
async fn what_ended_a_choice_is_told() {
    let reason = async |more: Value| {
        let (_, answer) = ask("/v1/completions", with(json!({"prompt": "say"}), more)).await;
        answer["choices"][0]["stop_reason"].clone()
    };
    // The model's own end token is not news, an id that was asked for is.
    assert_eq!(reason(json!({})).await, Value::Null);
    assert_eq!(reason(json!({"stop_token_ids": [2]})).await, json!(2));
    assert_eq!(reason(json!({"stop": "xyz"})).await, json!("xyz"));
}

#[tokio::test]
async fn wrong_fields_are_named_as_they_were_spelled() {
    let base = json!({"prompt": "say"});
    for (more, param) in [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": {"text": "say"}}), "prompt"),
        (json!({"prompt": ["say", 7]}), "prompt"),
        (json!({"prompt": [1, -1]}), "prompt[1]"),
        (
            json!({"prompt": [[1], [600]], "echo": true}),
            "prompt[1][0]",
        ),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"n": 0}), "n"),
        (json!({"n": -1}), "n"),
        (json!({"n": 1.5}), "n"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -3}), "max_tokens"),
        (json!({"max_tokens": 1_u64 << 40}), "max_tokens"),
        (json!({"logprobs": 1000}), "logprobs"),
        (json!({"logprobs": -1}), "logprobs"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": ["a", ""]}), "stop[1]"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"stop": ["a", 1]}), "stop[1]"),
        (json!({"stop_token_ids": [500]}), "stop_token_ids[0]"),
        (json!({"logit_bias": {"a": 1}}), "logit_bias"),
        (json!({"logit_bias": {"7": 101}}), "logit_bias[7]"),
        (json!({"logit_bias": {"7": "much"}}), "logit_bias.7"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"min_kv_bits": 3}), "min_kv_bits"),
        (json!({"priority": 1_u64 << 40}), "priority"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {}}), "stream_options"),
        (json!({"stream_options": [true]}), "stream_options"),
        (json!({"suffix": "the end"}), "suffix"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (json!({"guided_json": {"type": "object"}}), "guided_json"),
        (json!({"skip_special_tokens": 0}), "skip_special_tokens"),
        (
            json!({"stream": true, "prompt_logprobs": 1}),
            "prompt_logprobs",
        ),
    ] {
        let (status, answer) = ask("/v1/completions", with(base.clone(), more.clone())).await;
        let error = &answer["error"];
        assert_eq!(
            (status, &error["param"]),
            (StatusCode::BAD_REQUEST, &json!(param)),
            "{more}"
        );
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(param), "{message}");
    }
    for (more, param) in [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "say"}), "messages"),
        (json!({"messages": [["user", "say"]]}), "messages[0]"),
        (json!({"messages": [{"content": "say"}]}), "messages[0]"),
        (
            json!({"messages": [{"role": "", "content": "say"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user", "content": 7}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "7"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
            "messages[0].tool_calls",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:"}},
            ]}]}),
            "messages[0].content[1]",
        ),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"top_logprobs": 1}), "top_logprobs"),
        (
            json!({"logprobs": true, "top_logprobs": 1000}),
            "top_logprobs",
        ),
        (json!({"logprobs": 1}), "logprobs"),
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"reasoning_effort": "high"}), "reasoning_effort"),
        (json!({"chat_template_kwargs": [1]}), "chat_template_kwargs"),
        (json!({"add_generation_prompt": 1}), "add_generation_prompt"),
        (
            json!({"add_generation_prompt": true, "continue_final_message": true}),
            "continue_final_message",
        ),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
    ] {
        let (status, answer) = ask("/v1/chat/completions", with(chat("say"), more.clone())).await;
        let found = (status, &answer["error"]["param"]);
        assert_eq!(found, (StatusCode::BAD_REQUEST, &json!(param)), "{more}");
    }
}

#[tokio::test]
async fn what_asks_for_nothing_is_no_mistake() {
    for more in [
        json!({"tools": [], "tool_choice": "none", "functions": null}),
        json!({"response_format": {"type": "text"}, "modalities": ["text"]}),
        json!({"user": "me", "metadata": {"a": "b"}, "store": true, "logit_bias": null}),
        json!({"stop": null, "seed": -1, "top_k": -1, "max_tokens": 16.0, "stop_token_ids": null}),
        json!({"chat_template_kwargs": {}, "add_generation_prompt": true, "top_logprobs": 0}),
        json!({"chat_template_kwargs": {"thinking": true}, "add_generation_prompt": false}),
        json!({"continue_final_message": true, "skip_special_tokens": false}),
        json!({"max_tokens": 10_000_000, "max_completion_tokens": 5}),
    ] {
        let (status, answer) = ask("/v1/chat/completions", with(chat("say"), more)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    let parts = json!([{"type": "text", "text": "s"}]);
    let messages = json!([{"role": "developer", "content": parts},
                          {"role": "assistant", "content": null, "refusal": null},
                          {"role": "user", "content": [{"type": "text", "text": "say"}]}]);
    let (status, _) = ask("/v1/chat/completions", json!({"messages": messages})).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn calls_that_fail_have_their_status() {
    let error = async |body: Value| {
        let (status, answer) = ask("/v1/completions", body).await;
        let code = answer["error"]["code"].as_str().unwrap_or("").to_owned();
        (status.as_u16(), answer["error"]["type"].clone(), code)
    };
    let full = error(json!({"prompt": "full"})).await;
    assert_eq!(full, (429, json!("rate_limit_error"), "queue_full".into()));
    let broken = error(json!({"prompt": ["say", "broken"]})).await;
    assert_eq!(
        broken,
        (500, json!("server_error"), "internal_error".into())
    );
    let unknown = error(json!({"prompt": "say", "model": "other"})).await;
    assert_eq!(
        unknown,
        (
            404,
            json!("invalid_request_error"),
            "model_not_found".into()
        )
    );
    let vanished = error(json!({"prompt": "vanish"})).await;
    assert_eq!(vanished.0, 500);

    let (fake, mut router) = api();
    fake.0
        .accepting
        .store(false, std::sync::atomic::Ordering::Relaxed);
    let body = || post_request("/v1/completions", json!({"prompt": "say"}).to_string());
    let response = router.call(body()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    // While the model is being loaded.
    let loading = Api::<Fake>::new(Arc::default(), BODY_BYTES);
    let (status, text) = send(&mut super::router(&loading), body()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("model_loading"), "{text}");
}

#[tokio::test]
async fn bodies_that_are_none_are_refused() {
    let (_, mut router) = api();
    let long = json!({"prompt": "x".repeat(BODY_BYTES)}).to_string();
    let longer = json!({"prompt": "x".repeat(100 * BODY_BYTES)}).to_string();
    for (body, status) in [
        (long, 413),
        (longer, 413),
        ("{".into(), 400),
        (String::new(), 400),
    ] {
        let (found, text) = send(&mut router, post_request("/v1/completions", body)).await;
        assert_eq!(found.as_u16(), status, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["error"]["param"], Value::Null);
    }
    let form = Request::post("/v1/completions").body(Body::from("{\"prompt\": \"say\"}"));
    let (found, text) = send(&mut router, form.unwrap()).await;
    assert!(found == StatusCode::UNSUPPORTED_MEDIA_TYPE && text.contains("Content-Type"));
}

#[tokio::test]
async fn an_error_in_a_stream_is_an_event() {
    let chunks = stream("/v1/completions", json!({"prompt": "vanish"})).await;
    let error = &chunks.last().unwrap()["error"];
    assert_eq!(error["type"], "server_error");
}

#[tokio::test]
async fn special_tokens_are_told_by_their_text() {
    let (_, mut router) = api();
    let request = Request::get("/tokenizer_info").body(Body::empty());
    let (status, text) = send(&mut router, request.unwrap()).await;
    let told: Value = serde_json::from_str(&text).unwrap();
    let expected = json!({"tokenizer_class": "ebb", "bos_token": "\u{1}", "eos_token": "\u{2}",
                          "unk_token": null, "model_max_length": 1000});
    assert_eq!((status, told), (StatusCode::OK, expected));
}

#[tokio::test]
async fn text_becomes_tokens_and_back() {
    let body = json!({"prompt": "ab", "return_token_strs": true});
    let (_, tokens) = ask("/tokenize", body).await;
    let expected = json!({"count": 3, "max_model_len": 1000, "tokens": [1, 97, 98],
                          "token_strs": ["\u{1}", "a", "b"]});
    assert_eq!(tokens, expected);
    let (_, tokens) = ask(
        "/tokenize",
        json!({"prompt": "a", "add_special_tokens": false}),
    )
    .await;
    assert_eq!(
        (&tokens["tokens"], &tokens["token_strs"]),
        (&json!([97]), &Value::Null)
    );
    let (_, tokens) = ask("/tokenize", chat("hi")).await;
    assert_eq!(tokens["tokens"], json!([104, 105]));
    let (_, text) = ask("/detokenize", json!({"tokens": [7, 8]})).await;
    assert_eq!(text, json!({"prompt": "[7, 8]"}));
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        (
            "/tokenize",
            json!({"prompt": "a", "messages": []}),
            "prompt",
        ),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [0, 500]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens[0]"),
    ] {
        let (status, answer) = ask(path, body).await;
        let found = (status, &answer["error"]["param"]);
        assert_eq!(found, (StatusCode::BAD_REQUEST, &json!(param)), "{path}");
    }
}

#[tokio::test]
async fn models_are_listed_under_all_names() {
    let (_, mut router) = api();
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let (_, text) = send(&mut router, get("/v1/models")).await;
    let list: Value = serde_json::from_str(&text).unwrap();
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(ids, ["fake", "org/fake"]);
    for (path, status) in [
        ("/v1/models/fake", 200),
        ("/v1/models/org/fake", 200),
        ("/v1/models/org%2Ffake", 200),
        ("/v1/models/other", 404),
    ] {
        let (found, text) = send(&mut router, get(path)).await;
        assert_eq!(found.as_u16(), status, "{path}: {text}");
    }
}

#[tokio::test]
async fn a_response_is_one_object() {
    let body = json!({"input": "say", "instructions": "Be brief.", "max_output_tokens": 9,
                      "include": ["message.output_text.logprobs"]});
    let (status, answer) = ask("/v1/responses", body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(
        (&answer["object"], &answer["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert_eq!(
        (&answer["store"], &answer["max_output_tokens"]),
        (&json!(false), &json!(9))
    );
    assert_eq!(
        (&answer["instructions"], &answer["model"]),
        (&json!("Be brief."), &json!("fake"))
    );
    let message = &answer["output"][0];
    assert_eq!(
        (&message["role"], &message["status"]),
        (&json!("assistant"), &json!("completed"))
    );
    let part = &message["content"][0];
    assert_eq!(
        (&part["type"], &part["text"]),
        (&json!("output_text"), &json!("Hé!"))
    );
    assert_eq!(part["logprobs"].as_array().unwrap().len(), 4);
    assert_eq!(answer["usage"]["total_tokens"], 7);
    assert_eq!(answer["usage"]["input_tokens_details"]["cached_tokens"], 1);
    assert_eq!(answer["ebb"]["lowest_kv_bits"], 4);
    let items = json!([{"role": "user", "content": [{"type": "input_text", "text": "say"}]}]);
    let (_, answer) = ask("/v1/responses", json!({"input": items})).await;
    assert_eq!(answer["output"][0]["content"][0]["text"], "Hé!");
    let (_, answer) = ask("/v1/responses", json!({"input": "count"})).await;
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
}

#[tokio::test]
async fn a_responses_events_come_in_openais_order() {
    let body = json!({"input": "say", "stream": true}).to_string();
    let (_, text) = send(&mut api().1, post_request("/v1/responses", body)).await;
    let events: Vec<Value> = text
        .split_terminator("\n\n")
        .map(|event| {
            let event = event.strip_prefix("event: ").expect(event);
            let (name, data) = event.split_once("\ndata: ").expect(event);
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            data
        })
        .collect();
    let mut names: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    // A reader that is late gets pieces together.
    names.dedup();
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names, order);
    let numbers = events.iter().map(|event| event["sequence_number"].as_u64());
    assert!(numbers.eq((0..events.len() as u64).map(Some)));
    let item = &events[2]["item"]["id"];
    let items = events.iter().filter_map(|event| event.get("item_id"));
    assert!(items.clone().count() >= 4 && items.clone().all(|id| id == item));
    let deltas = events.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(deltas.collect::<String>(), "Hé!");
    let end = &events.last().unwrap()["response"];
    assert_eq!(end["output"][0]["content"][0]["text"], "Hé!");
    let body = json!({"input": "vanish", "stream": true}).to_string();
    let (_, text) = send(&mut api().1, post_request("/v1/responses", body)).await;
    assert!(text.contains("event: response.failed\n"), "{text}");
}

#[tokio::test]
async fn wrong_fields_of_responses_are_named() {
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 7}), "input"),
        (json!({"input": [{"content": "say"}]}), "input[0].role"),
        (json!({"input": [{"type": "reasoning"}]}), "input[0].type"),
        (
            json!({"input": "say", "previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"input": "say", "background": true}), "background"),
        (
            json!({"input": "say", "tools": [{"type": "web_search"}]}),
            "tools",
        ),
        (
            json!({"input": "say", "reasoning": {"effort": "high"}}),
            "reasoning.effort",
        ),
        (
            json!({"input": "say", "text": {"format": {"type": "json_schema"}}}),
            "text.format",
        ),
        (
            json!({"input": "say", "max_output_tokens": 0}),
            "max_output_tokens",
        ),
        (
            json!({"input": "say", "temperature": 1000, "top_p": 2}),
            "top_p",
        ),
    ] {
        let (status, answer) = ask("/v1/responses", body.clone()).await;
        let found = (status, &answer["error"]["param"]);
        assert_eq!(found, (StatusCode::BAD_REQUEST, &json!(param)), "{body}");
    }
}
