//! Everything that a client may send has a limit, over HTTP and in headers.

use super::http_api::{answer, completion};
use super::*;
use crate::sampling::{LOGIT_BIAS_MAX, N_MAX, STOP_BYTES_MAX, STOP_IDS_MAX, STOP_STRINGS_MAX};

#[tokio::test]
async fn bodies_and_fields_that_are_too_large_are_refused_over_http() {
    let (fake, server, _channel) = start().await;
    let address = server.api_address().unwrap();
    let list = |n: usize, item: &str| vec![item; n].join(", ");
    let long = "x".repeat(STOP_BYTES_MAX + 1);
    let biases: Vec<_> = (0..=LOGIT_BIAS_MAX)
        .map(|id| format!(r#""{id}": 1"#))
        .collect();
    for (status, word, body) in [
        (
            413,
            "body_too_large",
            format!(r#"{{"prompt": "{}"}}"#, "x".repeat(200_000)),
        ),
        (
            400,
            "prompt",
            format!(r#"{{"prompt": [{}]}}"#, list(2000, r#""x""#)),
        ),
        (
            400,
            "stop",
            format!(
                r#"{{"prompt": "x", "stop": [{}]}}"#,
                list(STOP_STRINGS_MAX + 1, r#""a""#)
            ),
        ),
        (
            400,
            "stop",
            format!(r#"{{"prompt": "x", "stop": ["{long}"]}}"#),
        ),
        (
            400,
            "stop_token_ids",
            format!(
                r#"{{"prompt": "x", "stop_token_ids": [{}]}}"#,
                list(STOP_IDS_MAX + 1, "1")
            ),
        ),
        (
            400,
            "logit_bias",
            format!(
                r#"{{"prompt": "x", "logit_bias": {{{}}}}}"#,
                biases.join(", ")
            ),
        ),
        (
            400,
            "\"n",
            format!(r#"{{"prompt": "x", "n": {}}}"#, N_MAX + 1),
        ),
        (
            400,
            "logprobs",
            r#"{"prompt": "x", "logprobs": 100000}"#.to_owned(),
        ),
        (400, "error", "[".repeat(90_000)),
    ] {
        let text = answer(address, completion(&body)).await;
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status}")),
            "{word}: {text}"
        );
        assert!(text.contains(word) && text.len() < 4000, "{word}: {text}");
    }
    assert_eq!(fake.0.live.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn headers_that_are_too_large_are_refused_and_harm_nobody() {
    let (_fake, server, channel) = start().await;
    let address = server.api_address().unwrap();
    let get = |path: &str, headers: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")
    };
    let many: String = (0..200).map(|i| format!("x-{i}: y\r\n")).collect();
    let long = format!("x-long: {}\r\n", "y".repeat(100_000));
    for request in [
        get("/version", &many),
        get("/version", &long),
        get(&format!("/{}", "y".repeat(100_000)), ""),
    ] {
        // A client that is refused while it writes may find the connection reset.
        let text = tokio::task::spawn_blocking(move || {
            use std::io::{Read as _, Write as _};
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            let _ = socket.write_all(request.as_bytes());
            let mut text = String::new();
            let _ = socket.read_to_string(&mut text);
            text
        });
        let text = text.await.unwrap();
        let refused = text.is_empty() || text.starts_with("HTTP/1.1 4");
        assert!(refused, "{text}");
    }
    // Over HTTP/2 at most 16 KiB.
    let mut request = tonic::Request::new(text("count"));
    let value = "y".repeat(20_000).parse().unwrap();
    request.metadata_mut().insert("x-long", value);
    let refused = match EbbClient::new(channel.clone()).generate(request).await {
        Ok(response) => response.into_inner().message().await.err(),
        Err(status) => Some(status),
    };
    let refused = refused.expect("the headers are too large");
    assert!(refused.message().contains("431"), "{refused}");
    assert_eq!(code(collect(&channel, text("count")).await.1), Code::Ok);
    assert!(
        answer(address, get("/version", ""))
            .await
            .starts_with("HTTP/1.1 200")
    );
}
