//! The HTTP API over real sockets: clients that leave, bodies that do not come, panics, shutdowns.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::*;
use crate::access::KeyLimits;

/// A socket on which this request was sent.
pub(super) fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    let timeout = Some(Duration::from_secs(10));
    socket.set_read_timeout(timeout).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    socket
}

pub(super) fn completion(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Everything that the server answers until it closes the connection.
pub(super) async fn answer(address: SocketAddr, request: String) -> String {
    let exchange = move || {
        let mut text = String::new();
        send(address, &request).read_to_string(&mut text).unwrap();
        text
    };
    tokio::task::spawn_blocking(exchange).await.unwrap()
}

#[tokio::test]
async fn the_port_answers_before_the_model_is_there_and_after() {
    let (server, _channel) = bind().await;
    let address = server.api_address().unwrap();
    let ask = || answer(address, completion(r#"{"prompt": "count"}"#));
    let loading = ask().await;
    assert!(loading.starts_with("HTTP/1.1 503") && loading.contains("model_loading"));
    server.ready(Fake::new()).await;
    let text = ask().await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.contains(r#""text":"0 1 2 3 4 ""#), "{text}");
    assert!(text.contains("x-request-id: req_"), "{text}");
    for (path, status) in [
        ("/health", "200"),
        ("/ping", "200"),
        ("/readyz", "200"),
        ("/metrics", "200"),
        ("/nothing", "404"),
        ("/v1/completions", "405"),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let text = answer(address, request).await;
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {text}"
        );
    }
    let metrics = get(&server, "/metrics").await;
    let line = "route=\"/v1/completions\",status=\"200\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn the_page_is_there_unless_it_is_left_out_and_needs_no_key() {
    use axum::http::StatusCode;
    use tonic::codegen::Service as _;
    let engine = std::sync::Arc::new(std::sync::OnceLock::from(Fake::new()));
    let api = super::super::Api::new(engine, 1000);
    let access = Access::new(&["secret".into()], None, KeyLimits::default()).unwrap();
    for (has_page, status) in [(true, StatusCode::OK), (false, StatusCode::NOT_FOUND)] {
        let mut router = super::super::front_ends(&api, &access, has_page);
        for path in crate::page::OPEN_PATHS {
            let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
            let answer = router.call(request).await.unwrap();
            assert_eq!(answer.status(), status, "{path}");
        }
    }
}

#[tokio::test]
async fn whoever_leaves_cancels_its_request() {
    let (fake, server, _channel) = start().await;
    let address = server.api_address().unwrap();
    for (i, body) in [
        r#"{"prompt": "forever"}"#,
        r#"{"prompt": "forever", "stream": true}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let socket = send(address, &completion(body));
        let live = || fake.0.live.load(Ordering::Relaxed) == 1;
        eventually("the request runs", live).await;
        drop(socket);
        let aborted = || fake.0.aborted.load(Ordering::Relaxed) == i + 1;
        eventually("the request is cancelled", aborted).await;
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_given_up() {
    let times = Times {
        unread: Duration::from_millis(300),
        ..Times::default()
    };
    let memory = ClientMemory::new(8 << 20);
    let (server, _channel) = bind_with(ConnectionLimits::default(), times, memory).await;
    let fake = Fake::new();
    server.ready(fake.clone()).await;
    let body = r#"{"prompt": "flood", "stream": true}"#;
    let mut socket = send(server.api_address().unwrap(), &completion(body));
    let live = || fake.0.live.load(Ordering::Relaxed) == 0;
    eventually("the request begins", || !live()).await;
    eventually("the request ends", live).await;
    let read = move || std::io::copy(&mut socket, &mut std::io::sink());
    // What was under way arrives, then the connection is closed or reset.
    let read = tokio::task::spawn_blocking(read).await.unwrap();
    assert!(read.is_err() || read.is_ok_and(|bytes| bytes < 16 << 20));
}

#[tokio::test]
async fn a_panic_ends_its_call_alone() {
    let (_fake, server, _channel) = start().await;
    let address = server.api_address().unwrap();
    let text = answer(address, completion(r#"{"prompt": "panic"}"#)).await;
    assert!(
        text.starts_with("HTTP/1.1 500") && text.contains("server_error"),
        "{text}"
    );
    let text = answer(address, completion(r#"{"prompt": "count"}"#)).await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[tokio::test]
async fn a_body_has_its_time_and_its_share_of_the_memory() {
    let times = Times {
        message: Duration::from_millis(200),
        ..Times::default()
    };
    let memory = ClientMemory::new(2000);
    let (server, _channel) = bind_with(ConnectionLimits::default(), times, memory.clone()).await;
    server.ready(Fake::new()).await;
    let address = server.api_address().unwrap();
    let late = completion("{}").replace("Content-Length: 2", "Content-Length: 200");
    let text = answer(address, late).await;
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    let large = completion(&format!(r#"{{"prompt": "{}"}}"#, "x".repeat(3000)));
    let text = answer(address, large).await;
    assert!(
        text.starts_with("HTTP/1.1 413") || text.starts_with("HTTP/1.1 429"),
        "{text}"
    );
    eventually("the memory is given back", || memory.held() == 0).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_answers() {
    let (_fake, server, _channel) = start().await;
    let address = server.api_address().unwrap();
    let whole = tokio::spawn(answer(address, completion(r#"{"prompt": "slowly"}"#)));
    let body = r#"{"prompt": "slowly", "stream": true}"#;
    let pieces = tokio::spawn(answer(address, completion(body)));
    tokio::time::sleep(Duration::from_millis(150)).await;
    server.shut_down(Duration::from_secs(10)).await;
    assert!(
        whole
            .await
            .unwrap()
            .contains(r#""text":"0 1 2 3 4 5 6 7 8 9 ""#)
    );
    assert!(pieces.await.unwrap().contains("data: [DONE]"));
    let closed = tokio::task::spawn_blocking(move || TcpStream::connect(address).is_err());
    assert!(closed.await.unwrap());
}

#[tokio::test]
async fn every_path_of_the_document_is_answered() {
    let (_fake, server, _channel) = start().await;
    let address = server.api_address().unwrap();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let document = answer(address, get("/openapi.json")).await;
    let (head, body) = document.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let document: serde_json::Value = serde_json::from_str(body).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{name}", "org/fake");
            let request = get(&path).replace("GET", &method.to_uppercase());
            let text = answer(address, request).await;
            let unknown = text.contains("unknown_url") || text.contains("method_not_supported");
            assert!(
                text.starts_with("HTTP/1.1 ") && !unknown,
                "{method} {path}: {text}"
            );
        }
    }
}

#[tokio::test]
async fn what_a_prompt_is_repeated_to_counts_before_it_is_made() {
    let memory = ClientMemory::new(1 << 20);
    let connections = ConnectionLimits::default();
    let (server, _channel) = bind_with(connections, Times::default(), memory.clone()).await;
    server.ready(Fake::new()).await;
    let address = server.api_address().unwrap();
    // Of 128 choices each would begin with the log-probabilities of the whole prompt.
    let body = |prompt: &str, more: &str| {
        completion(&format!(
            r#"{{"prompt": "{prompt}", "echo": true, "logprobs": 1, "n": 128 {more}}}"#
        ))
    };
    let long = "say".repeat(200);
    for more in ["", r#", "stream": true"#] {
        let text = answer(address, body("say", more)).await;
        assert!(
            text.starts_with("HTTP/1.1 200") && text.contains("say"),
            "{text}"
        );
        let text = answer(address, body(&long, more)).await;
        assert!(text.contains("client_memory_full"), "{text}");
    }
    // However many prompts share parameters that are wrong, they are refused once.
    let prompts = vec![r#""say""#; 1000].join(", ");
    let biases: Vec<String> = (0..5000).map(|id| format!(r#""{id}": 1"#)).collect();
    let biases = biases.join(", ");
    let text = format!(r#"{{"prompt": [{prompts}], "logit_bias": {{{biases}}}}}"#);
    let text = answer(address, completion(&text)).await;
    assert!(text.contains(r#""param":"logit_bias"#), "{text}");
    eventually("the memory is given back", || memory.held() == 0).await;
}

#[tokio::test]
async fn a_body_without_room_is_read_to_its_end() {
    let memory = ClientMemory::new(10_000);
    let connections = ConnectionLimits::default();
    let (server, _channel) = bind_with(connections, Times::default(), memory.clone()).await;
    server.ready(Fake::new()).await;
    let address = server.api_address().unwrap();
    // The client writes all of it before it reads; so does one whose body is too long itself.
    for bytes in [90_000, 1_000_000] {
        let body = format!(r#"{{"prompt": "{}"}}"#, "x".repeat(bytes));
        let text = answer(address, completion(&body)).await;
        assert!(
            text.starts_with("HTTP/1.1 4") && text.contains("client_memory"),
            "{text}"
        );
    }
    eventually("the memory is given back", || memory.held() == 0).await;
}

#[tokio::test]
async fn whoever_finds_every_connection_busy_hears_so() {
    let connections = ConnectionLimits {
        max: 2,
        per_peer: Some(0),
    };
    let memory = ClientMemory::unlimited();
    let (server, _channel) = bind_with(connections, Times::default(), memory).await;
    let fake = Fake::new();
    server.ready(fake.clone()).await;
    let address = server.api_address().unwrap();
    let busy = [(); 2].map(|()| send(address, &completion(r#"{"prompt": "forever"}"#)));
    eventually("both run", || fake.0.live.load(Ordering::Relaxed) == 2).await;
    // Its request may be on its way still when the connection is closed: it asks for nothing.
    let text = answer(address, String::new()).await;
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["error"]["code"], "too_many_connections");
    drop(busy);
    eventually("both are cancelled", || {
        fake.0.aborted.load(Ordering::Relaxed) == 2
    })
    .await;
    let text = answer(address, completion(r#"{"prompt": "count"}"#)).await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}
