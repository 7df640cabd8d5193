//! What calls answer.

use tonic_types::StatusExt as _;

use super::*;
use crate::core::STREAM_LIMIT_BYTES;

#[tokio::test]
async fn generate_streams_started_deltas_finished_in_order() {
    let (_fake, _server, channel) = start().await;
    let (events, status) = collect(&channel, text("count")).await;
    assert_eq!(code(status), Code::Ok);
    let Event::Started(started) = &events[0] else {
        panic!("{:?}", events[0])
    };
    assert_eq!((started.prompt_tokens, started.cached_tokens), (3, 1));
    assert!(
        started.request_id.starts_with("ebb-"),
        "{}",
        started.request_id
    );
    let mut answer = String::new();
    for event in &events[1..events.len() - 1] {
        let Event::Delta(delta) = event else {
            panic!("{event:?}")
        };
        answer.push_str(&delta.text);
    }
    assert_eq!(answer, "0 1 2 3 4 ");
    let Some(Event::Finished(finished)) = events.last() else {
        panic!("{:?}", events.last())
    };
    assert_eq!(
        (finished.reason(), finished.completion_tokens),
        (v1::FinishReason::Length, 5)
    );
}

#[tokio::test]
async fn bad_fields_are_named_in_message_and_details() {
    let (_fake, _server, channel) = start().await;
    let sampling = v1::SamplingParams {
        top_p: Some(0.0),
        ..Default::default()
    };
    let no_role = v1::ChatMessages {
        messages: vec![v1::ChatMessage {
            role: String::new(),
            content: "hi".into(),
        }],
    };
    let chat = |c| v1::GenerateRequest {
        prompt: Some(v1::generate_request::Prompt::Chat(c)),
        ..Default::default()
    };
    for (field, request) in [
        ("prompt", v1::GenerateRequest::default()),
        (
            "request_id",
            v1::GenerateRequest {
                request_id: "a".repeat(257),
                ..text("count")
            },
        ),
        (
            "request_id",
            v1::GenerateRequest {
                request_id: "a\nb".into(),
                ..text("count")
            },
        ),
        (
            "timeout_ms",
            v1::GenerateRequest {
                timeout_ms: Some(0),
                ..text("count")
            },
        ),
        (
            "sampling.top_p",
            v1::GenerateRequest {
                sampling: Some(sampling),
                ..text("count")
            },
        ),
        ("chat.messages", chat(v1::ChatMessages::default())),
        ("chat.messages[0].role", chat(no_role)),
    ] {
        let (_, status) = collect(&channel, request).await;
        let status = status.unwrap_or_else(|| panic!("{field} was accepted"));
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert!(
            status.message().starts_with(&format!("{field}: ")),
            "{}",
            status.message()
        );
        let details = status
            .get_details_bad_request()
            .expect("a BadRequest detail");
        assert_eq!(details.field_violations[0].field, field);
    }
    let mut client = EbbClient::new(channel);
    let ids = v1::DetokenizeRequest {
        token_ids: vec![499, 500],
        ..Default::default()
    };
    let status = client.detokenize(ids).await.unwrap_err();
    assert!(
        status.message().starts_with("token_ids[1]: 500 "),
        "{}",
        status.message()
    );
    let status = client.abort(v1::AbortRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = client
        .tokenize(v1::TokenizeRequest::default())
        .await
        .unwrap_err();
    assert!(
        status.message().starts_with("input: "),
        "{}",
        status.message()
    );
}

#[tokio::test]
async fn engine_errors_become_their_status_and_are_counted() {
    let (fake, server, channel) = start().await;
    for (script, want) in [
        ("full", Code::ResourceExhausted),
        ("broken", Code::Internal),
        ("vanish", Code::Internal),
        ("panic", Code::Internal),
        ("count", Code::Ok), // the server lives on after a panic
    ] {
        let (_, status) = collect(&channel, text(script)).await;
        assert_eq!(code(status), want, "{script}");
    }
    fake.0.accepting.store(false, Ordering::Relaxed);
    assert_eq!(
        code(collect(&channel, text("count")).await.1),
        Code::Unavailable
    );

    let metrics = get(&server, "/metrics").await;
    let count = |code: &str| {
        let label = format!("method=\"Generate\",code=\"{code}\"");
        let line = metrics
            .lines()
            .find(|l| l.starts_with("ebb:rpcs_total") && l.contains(&label));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<u32>().ok())
    };
    assert_eq!(count("OK"), Some(1), "{metrics}");
    assert_eq!(count("INTERNAL"), Some(3));
    assert_eq!(count("RESOURCE_EXHAUSTED"), Some(1));
    assert_eq!(count("UNAVAILABLE"), Some(1));
}

#[tokio::test]
async fn the_earlier_of_both_deadlines_counts() {
    let (_fake, _server, channel) = start().await;
    let own = v1::GenerateRequest {
        timeout_ms: Some(80),
        ..text("forever")
    };
    assert_eq!(
        code(collect(&channel, own.clone()).await.1),
        Code::DeadlineExceeded
    );

    // The call's own deadline; the header alone, because the client would cancel by itself
    // otherwise.
    let mut request = tonic::Request::new(v1::GenerateRequest {
        timeout_ms: Some(60_000),
        ..own
    });
    request
        .metadata_mut()
        .insert("grpc-timeout", "80m".parse().unwrap());
    let mut stream = EbbClient::new(channel)
        .generate(request)
        .await
        .unwrap()
        .into_inner();
    let status = loop {
        match stream.message().await {
            Ok(message) => assert!(message.is_some(), "ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_client_that_goes_away_aborts_its_request() {
    let (fake, server, channel) = start().await;
    let mut stream = EbbClient::new(channel)
        .generate(text("forever"))
        .await
        .unwrap()
        .into_inner();
    stream.message().await.unwrap();
    drop(stream);
    eventually("aborted", || fake.0.aborted.load(Ordering::Relaxed) == 1).await;
    eventually("ended", || fake.0.live.load(Ordering::Relaxed) == 0).await;
    let metrics = get(&server, "/metrics").await;
    assert!(
        metrics.contains("method=\"Generate\",code=\"CANCELLED\"} 1"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_holds_a_bounded_amount_and_slows_nobody() {
    let (fake, server, channel) = start().await;
    let mut stalled = EbbClient::new(channel)
        .generate(text("flood"))
        .await
        .unwrap()
        .into_inner();
    stalled.message().await.unwrap();
    eventually("the flood ended", || {
        fake.0.live.load(Ordering::Relaxed) == 0
    })
    .await;
    let flooded = fake.0.flooded.load(Ordering::Relaxed);
    // Beyond the engine's own bound: what the client took into its window, and 112 KiB on the way
    // there.
    let most = STREAM_LIMIT_BYTES + CLIENT_WINDOW_BYTES as usize + 112 * 1024;
    assert!(
        (STREAM_LIMIT_BYTES / 2..most).contains(&flooded),
        "{flooded} bytes"
    );

    let began = std::time::Instant::now();
    assert_eq!(
        code(collect(&connect(&server), text("count")).await.1),
        Code::Ok
    );
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "another call took {:?}",
        began.elapsed()
    );

    // Reading on delivers what waited, in messages of moderate size, and then the reason.
    let mut delivered = 0;
    let status = loop {
        match stalled.message().await {
            Ok(Some(v1::GenerateResponse {
                event: Some(Event::Delta(delta)),
            })) => {
                assert!(
                    delta.text.len() <= 16 * 1024,
                    "a message of {} bytes",
                    delta.text.len()
                );
                delivered += delta.text.len();
            }
            Ok(other) => panic!("{other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (status.code(), delivered),
        (Code::ResourceExhausted, flooded)
    );
}

#[tokio::test]
async fn other_calls_answer() {
    let (_fake, _server, channel) = start().await;
    let mut client = EbbClient::new(channel);
    let model = client
        .get_model_info(v1::GetModelInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (model.name.as_str(), model.max_context, model.vocab_size),
        ("fake", 1000, 500)
    );
    let info = client
        .get_server_info(v1::GetServerInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(info.accepting && info.uptime_seconds > 0.0);
    assert_eq!(info.limits.unwrap().max_waiting, 3);

    let input = Some(v1::tokenize_request::Input::Text("ab".into()));
    let request = v1::TokenizeRequest {
        input,
        add_special_tokens: None,
    };
    let tokens = client
        .tokenize(request.clone())
        .await
        .unwrap()
        .into_inner()
        .token_ids;
    assert_eq!(tokens, [1, 97, 98]);
    let request = v1::TokenizeRequest {
        add_special_tokens: Some(false),
        ..request
    };
    assert_eq!(
        client
            .tokenize(request)
            .await
            .unwrap()
            .into_inner()
            .token_ids,
        [97, 98]
    );
    let request = v1::DetokenizeRequest {
        token_ids: vec![5],
        skip_special_tokens: None,
    };
    assert_eq!(
        client.detokenize(request).await.unwrap().into_inner().text,
        "[5]"
    );

    for (id, want) in [("known", true), ("unknown", false)] {
        let request = v1::AbortRequest {
            request_id: id.into(),
        };
        assert_eq!(
            client.abort(request).await.unwrap().into_inner().aborted,
            want
        );
    }
}

#[tokio::test]
async fn a_message_above_the_limit_is_refused() {
    let (_fake, _server, channel) = start().await;
    let (_, status) = collect(&channel, text(&"x".repeat(200_000))).await;
    assert_eq!(code(status), Code::OutOfRange);
}

#[tokio::test]
async fn work_for_a_client_that_left_ends() {
    let (fake, server, channel) = start().await;
    let live = || fake.0.live.load(Ordering::Relaxed);
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let mut client = EbbClient::new(channel.clone());
            tokio::spawn(async move {
                let input = Some(v1::tokenize_request::Input::Text("forever".into()));
                let request = v1::TokenizeRequest {
                    input,
                    ..Default::default()
                };
                client.tokenize(request).await
            })
        })
        .collect();
    eventually("all are worked on", || live() == 20).await;
    for call in &calls {
        call.abort();
    }
    eventually("nobody works for nobody", || live() == 0).await;
    let metrics = get(&server, "/metrics").await;
    assert!(metrics.contains("method=\"Tokenize\",code=\"CANCELLED\"} 20"));
}
