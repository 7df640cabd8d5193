//! From listening without a model to the last byte.

use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

use super::*;

async fn health(channel: &Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest {
        service: service.into(),
    };
    HealthClient::new(channel.clone())
        .check(request)
        .await
        .unwrap()
        .into_inner()
        .status()
}

#[tokio::test]
async fn health_and_probes_follow_the_engine() {
    let (server, channel) = bind().await;
    for service in ["", "ebb.v1.Ebb"] {
        assert_eq!(health(&channel, service).await, ServingStatus::NotServing);
    }
    assert!(get(&server, "/readyz").await.starts_with("HTTP/1.1 503"));
    assert!(get(&server, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert_eq!(
        code(collect(&channel, text("count")).await.1),
        Code::Unavailable
    );

    let fake = Fake::new();
    server.ready(fake.clone()).await;
    for service in ["", "ebb.v1.Ebb"] {
        assert_eq!(health(&channel, service).await, ServingStatus::Serving);
    }
    assert!(get(&server, "/readyz").await.starts_with("HTTP/1.1 200"));

    for hung in [true, false] {
        fake.0.hung.store(hung, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (status, code) = match hung {
            true => (ServingStatus::NotServing, "HTTP/1.1 503"),
            false => (ServingStatus::Serving, "HTTP/1.1 200"),
        };
        assert_eq!(health(&channel, "").await, status);
        for probe in ["/livez", "/healthz", "/readyz"] {
            assert!(get(&server, probe).await.starts_with(code), "{probe}");
        }
    }

    fake.0.alive.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(health(&channel, "").await, ServingStatus::NotServing);
    assert!(get(&server, "/readyz").await.starts_with("HTTP/1.1 503"));
    assert!(get(&server, "/healthz").await.starts_with("HTTP/1.1 500"));
}

#[tokio::test]
async fn metrics_are_prometheus_text_with_vllms_names() {
    let (_fake, server, channel) = start().await;
    let _ = collect(&channel, text("count")).await;
    let answer = get(&server, "/metrics").await;
    assert!(
        answer.contains("content-type: text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(
        answer.contains("vllm:num_requests_running{model_name=\"fake\",engine=\"0\"} 0"),
        "{answer}"
    );
    assert!(get(&server, "/nowhere").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn shutting_down_finishes_what_runs_and_refuses_the_rest() {
    let (fake, server, channel) = start().await;
    let running = tokio::spawn({
        let channel = channel.clone();
        async move { collect(&channel, text("slowly")).await }
    });
    // A call that never ends by itself must not hold the server up.
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let mut watch = HealthClient::new(channel.clone())
        .watch(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        watch.message().await.unwrap().unwrap().status(),
        ServingStatus::Serving
    );
    eventually("running", || fake.0.live.load(Ordering::Relaxed) == 1).await;

    let began = std::time::Instant::now();
    let closing = tokio::spawn(server.shut_down(Duration::from_secs(20)));
    assert_eq!(
        watch.message().await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    assert_eq!(
        code(collect(&channel, text("count")).await.1),
        Code::Unavailable
    );
    closing.await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );

    let (events, status) = running.await.unwrap();
    assert_eq!(code(status), Code::Ok);
    assert!(
        matches!(events.last(), Some(Event::Finished(f)) if f.completion_tokens == 10),
        "{events:?}"
    );
    assert!(
        EbbClient::new(channel)
            .get_server_info(v1::GetServerInfoRequest {})
            .await
            .is_err()
    );
}

#[tokio::test]
async fn the_grace_period_is_kept() {
    let (_fake, server, channel) = start().await;
    let mut stream = EbbClient::new(channel)
        .generate(text("forever"))
        .await
        .unwrap()
        .into_inner();
    stream.message().await.unwrap();
    let began = std::time::Instant::now();
    server.shut_down(Duration::from_millis(500)).await;
    assert!(
        began.elapsed() < Duration::from_millis(900),
        "{:?}",
        began.elapsed()
    );
}
