//! Keys and their limits, over both protocols.

use tonic::metadata::MetadataValue;

use super::http_api::{answer, completion};
use super::*;
use crate::access::KeyLimits;

const KEY: &str = "sk-HUSH-1";

async fn start_with(config: ServerConfig) -> (Fake, Server<Fake>, Channel) {
    let server = Server::bind(&config).await.expect("free ports");
    let channel = connect(&server);
    let fake = Fake::new();
    server.ready(fake.clone()).await;
    (fake, server, channel)
}

async fn with_keys(limits: KeyLimits) -> (Fake, Server<Fake>, Channel) {
    let access = Access::new(&[KEY.into()], None, limits).unwrap();
    start_with(ServerConfig {
        access,
        ..loopback()
    })
    .await
}

/// A call of `path` with these header lines.
fn call(path: &str, headers: &str, body: &str) -> String {
    let request = completion(body).replace("/v1/completions", path);
    request.replacen("Host: x\r\n", &format!("Host: x\r\n{headers}"), 1)
}

/// The status of a Generate call with this metadata.
async fn generate(channel: &Channel, prompt: &str, metadata: Option<(&str, &str)>) -> Status {
    let mut request = tonic::Request::new(text(prompt));
    if let Some((name, value)) = metadata {
        let value = MetadataValue::try_from(value).unwrap();
        let name = tonic::metadata::MetadataKey::from_bytes(name.as_bytes()).unwrap();
        request.metadata_mut().insert(name, value);
    }
    let mut stream = match EbbClient::new(channel.clone()).generate(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return status,
    };
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        }
    }
}

#[tokio::test]
async fn http_calls_need_a_key_each_front_end_in_its_own_shape() {
    let (_fake, server, _channel) = with_keys(KeyLimits::default()).await;
    let address = server.api_address().unwrap();
    let chat = r#"{"messages": [{"role": "user", "content": "count"}], "max_tokens": 9}"#;
    for (path, body, shape) in [
        (
            "/v1/completions",
            r#"{"prompt": "count"}"#,
            r#""code":"invalid_api_key""#,
        ),
        ("/v1/chat/completions", chat, r#""code":"invalid_api_key""#),
        (
            "/tokenize",
            r#"{"prompt": "count"}"#,
            r#""code":"invalid_api_key""#,
        ),
        ("/v1/messages", chat, r#""type":"authentication_error""#),
        (
            "/v1/messages/count_tokens",
            chat,
            r#""type":"authentication_error""#,
        ),
    ] {
        for headers in [
            "",
            "Authorization: Bearer sk-HUSH-2\r\n",
            "Authorization: Basic sk-HUSH-1\r\n",
            "x-api-key: sk-HUSH-\r\n",
        ] {
            let text = answer(address, call(path, headers, body)).await;
            assert!(text.starts_with("HTTP/1.1 401"), "{path} {headers}: {text}");
            assert!(text.contains(shape) && !text.contains("HUSH"), "{text}");
            assert!(text.contains("www-authenticate: Bearer"), "{text}");
        }
        for headers in [
            "Authorization: Bearer sk-HUSH-1\r\n",
            "authorization: bearer sk-HUSH-1\r\n",
            "X-Api-Key: sk-HUSH-1\r\n",
        ] {
            let text = answer(address, call(path, headers, body)).await;
            assert!(text.starts_with("HTTP/1.1 200"), "{path} {headers}: {text}");
        }
    }
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let closed = answer(address, get("/v1/models")).await;
    assert!(closed.starts_with("HTTP/1.1 401"), "{closed}");
    let open = [
        "/health", "/ping", "/livez", "/readyz", "/healthz", "/metrics",
    ];
    for path in open.into_iter().chain(["/version", "/openapi.json"]) {
        let text = answer(address, get(path)).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
    }
    let metrics = super::get(&server, "/metrics").await;
    let line = "route=\"/v1/completions\",status=\"401\"} 4";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn a_refused_body_is_read_so_that_its_client_reads_the_refusal() {
    let (_fake, server, _channel) = with_keys(KeyLimits::default()).await;
    let address = server.api_address().unwrap();
    let body = format!(r#"{{"prompt": "{}"}}"#, "x".repeat(90_000));
    let text = answer(address, completion(&body)).await;
    assert!(text.starts_with("HTTP/1.1 401"), "{text}");
}

#[tokio::test]
async fn grpc_calls_need_a_key_and_health_and_reflection_do_not() {
    let (_fake, server, channel) = with_keys(KeyLimits::default()).await;
    for metadata in [
        None,
        Some(("authorization", "Bearer sk-HUSH-2")),
        Some(("authorization", "sk-HUSH-1")),
        Some(("x-api-key", "")),
    ] {
        let status = generate(&channel, "count", metadata).await;
        assert_eq!(status.code(), Code::Unauthenticated, "{metadata:?}");
        let says = status.message();
        assert!(says.contains("API key") && !says.contains("HUSH"), "{says}");
    }
    for metadata in [
        ("authorization", "Bearer sk-HUSH-1"),
        ("x-api-key", "sk-HUSH-1"),
    ] {
        let status = generate(&channel, "count", Some(metadata)).await;
        assert_eq!(status.code(), Code::Ok, "{metadata:?}");
    }
    let mut client = EbbClient::new(channel.clone());
    let info = client.get_model_info(v1::GetModelInfoRequest {});
    assert_eq!(info.await.unwrap_err().code(), Code::Unauthenticated);
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let request = tonic_health::pb::HealthCheckRequest::default();
    assert!(health.check(request).await.is_ok());
    let metrics = get(&server, "/metrics").await;
    let line = "method=\"Generate\",code=\"UNAUTHENTICATED\"} 4";
    let other = "code=\"UNAUTHENTICATED\",method=\"Generate\"} 4";
    assert!(
        metrics.contains(line) || metrics.contains(other),
        "{metrics}"
    );
}

#[tokio::test]
async fn calls_at_once_are_limited_over_both_protocols_together() {
    let limits = KeyLimits {
        max_concurrency: Some(1),
        ..KeyLimits::default()
    };
    let (fake, server, channel) = with_keys(limits).await;
    let address = server.api_address().unwrap();
    let bearer = "Authorization: Bearer sk-HUSH-1\r\n";
    let forever = call(
        "/v1/completions",
        bearer,
        r#"{"prompt": "forever", "stream": true}"#,
    );
    let socket = super::http_api::send(address, &forever);
    eventually("it runs", || fake.0.live.load(Ordering::Relaxed) == 1).await;
    let text = answer(
        address,
        call("/v1/completions", bearer, r#"{"prompt": "count"}"#),
    )
    .await;
    assert!(
        text.starts_with("HTTP/1.1 429") && text.contains("rate_limit_exceeded"),
        "{text}"
    );
    assert!(text.contains("retry-after: 1\r\n"), "{text}");
    let metadata = Some(("x-api-key", KEY));
    let status = generate(&channel, "count", metadata).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.metadata().get("retry-after").unwrap(), "1");
    // What does not make the engine work does not count.
    let get = call("/v1/models", bearer, "").replace("POST", "GET");
    assert!(answer(address, get).await.starts_with("HTTP/1.1 200"));
    let mut abort = tonic::Request::new(v1::AbortRequest {
        request_id: "known".into(),
    });
    abort
        .metadata_mut()
        .insert("x-api-key", KEY.parse().unwrap());
    assert!(EbbClient::new(channel.clone()).abort(abort).await.is_ok());
    drop(socket);
    eventually("it ends", || fake.0.live.load(Ordering::Relaxed) == 0).await;
    let mut code = Code::Unknown;
    for _ in 0..100 {
        code = generate(&channel, "count", metadata).await.code();
        if code == Code::Ok {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(code, Code::Ok);
}

#[tokio::test]
async fn requests_and_tokens_are_limited_over_both_protocols_together() {
    let bearer = "Authorization: Bearer sk-HUSH-1\r\n";
    let metadata = Some(("x-api-key", KEY));
    let requests = KeyLimits {
        requests_per_minute: Some(2),
        ..KeyLimits::default()
    };
    // A prompt of the script has 3 tokens, its answer 5.
    let tokens = KeyLimits {
        tokens_per_minute: Some(9),
        ..KeyLimits::default()
    };
    for limits in [requests, tokens] {
        for stream in ["false", "true"] {
            let (_fake, server, channel) = with_keys(limits).await;
            let address = server.api_address().unwrap();
            let count = format!(r#"{{"prompt": "count", "stream": {stream}}}"#);
            let http = || answer(address, call("/v1/completions", bearer, &count));
            assert!(http().await.starts_with("HTTP/1.1 200"));
            assert_eq!(generate(&channel, "count", metadata).await.code(), Code::Ok);
            let text = http().await;
            assert!(text.starts_with("HTTP/1.1 429"), "{text}");
            let (_, after) = text.split_once("retry-after: ").expect("a time");
            let after: u32 = after.split_once('\r').unwrap().0.parse().unwrap();
            assert!((1..=60).contains(&after), "{text}");
            let status = generate(&channel, "count", metadata).await;
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        }
    }
}

#[tokio::test]
async fn pages_of_allowed_origins_may_call_and_no_others() {
    let preflight = |origin: &str| {
        format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: authorization,content-type\r\n\
             Connection: close\r\n\r\n"
        )
    };
    let access = Access::new(&[KEY.into()], None, KeyLimits::default()).unwrap();
    for (origins, page, answered) in [
        ("https://a.example", "https://a.example", true),
        ("https://a.example", "https://b.example", false),
        ("*", "https://b.example", true),
        ("[]", "https://a.example", false),
    ] {
        let config = ServerConfig {
            access: access.clone(),
            allowed_origins: origins.parse().unwrap(),
            ..loopback()
        };
        let (_fake, server, _channel) = start_with(config).await;
        let address = server.api_address().unwrap();
        let text = answer(address, preflight(page)).await.to_lowercase();
        let allowed = text.contains("access-control-allow-origin: ");
        assert_eq!(allowed, answered, "{origins} {page}: {text}");
        if answered {
            assert!(text.starts_with("http/1.1 200"), "{text}");
            assert!(text.contains("access-control-allow-headers: authorization,content-type"));
            // The page can read why it is refused, too.
            let origin = format!("Origin: {page}\r\n");
            let text = answer(address, call("/v1/completions", &origin, "{}")).await;
            assert!(text.starts_with("HTTP/1.1 401"), "{text}");
            assert!(text.contains("access-control-allow-origin: "), "{text}");
        }
    }
}

#[tokio::test]
async fn a_prompt_is_charged_even_if_no_event_was_taken() {
    let limits = KeyLimits {
        tokens_per_minute: Some(3),
        ..KeyLimits::default()
    };
    let (_fake, _server, channel) = with_keys(limits).await;
    let mut request = tonic::Request::new(text("forever"));
    request
        .metadata_mut()
        .insert("x-api-key", KEY.parse().unwrap());
    let call = EbbClient::new(channel.clone()).generate(request).await;
    drop(call.expect("it is accepted"));
    let status = generate(&channel, "count", Some(("x-api-key", KEY))).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
}

#[tokio::test]
async fn the_slow_body_of_a_refused_call_is_not_waited_for() {
    let (_fake, server, _channel) = with_keys(KeyLimits::default()).await;
    let address = server.api_address().unwrap();
    let slow = completion("{").replace("Content-Length: 1", "Content-Length: 9");
    let began = std::time::Instant::now();
    let text = answer(address, slow).await;
    assert!(text.starts_with("HTTP/1.1 401"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(8));
}
