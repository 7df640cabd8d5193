//! Many clients that connect and do nothing, or too much.

use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

async fn crowded(max: usize, per_peer: Option<usize>, times: Times) -> (Server<Fake>, Channel) {
    let (server, channel) = bind_with(
        ConnectionLimits { max, per_peer },
        times,
        ClientMemory::new(8 << 20),
    )
    .await;
    server.ready(Fake::new()).await;
    (server, channel)
}

async fn raw(server: &Server<Fake>, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(server.grpc_address()).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    socket
}

/// What a socket still receives before the server closes it.
async fn rest(socket: &mut TcpStream, within: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    let end = tokio::time::timeout(within, socket.read_to_end(&mut bytes)).await;
    end.expect("the server closes it in time").ok();
    bytes
}

async fn sample(server: &Server<Fake>, start: &str, label: &str) -> f64 {
    let text = get(server, "/metrics").await;
    let found = |l: &&str| l.starts_with(start) && l.contains(label);
    let line = text.lines().find(found).expect("a sample").to_owned();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn silent_connections_make_way_for_clients() {
    let (server, channel) = crowded(8, Some(0), Times::default()).await;
    assert_eq!(code(collect(&channel, text("count")).await.1), Code::Ok);
    let mut silent = Vec::new();
    for i in 0..30 {
        let bytes = [&b""[..], &PREFACE[..12], PREFACE][i % 3];
        silent.push(raw(&server, bytes).await);
    }
    let began = Instant::now();
    for _ in 0..3 {
        let newcomer = connect(&server);
        assert_eq!(code(collect(&newcomer, text("count")).await.1), Code::Ok);
    }
    // The first client, which asked before, was not the one to go.
    assert_eq!(code(collect(&channel, text("count")).await.1), Code::Ok);
    assert!(began.elapsed() < Duration::from_secs(2));
    let closed = |reason| sample(&server, "ebb:connections_closed_total{", reason);
    assert!(closed("port=\"grpc\",reason=\"made_way\"").await >= 25.0);
    let open = sample(&server, "ebb:connections{", "port=\"grpc\"").await;
    assert!(open <= 8.0, "{open}");
}

#[tokio::test]
async fn busy_connections_stay_and_newcomers_are_told() {
    let (server, channel) = crowded(2, Some(0), Times::default()).await;
    let mut answers = Vec::new();
    for channel in [channel, connect(&server)] {
        let mut client = EbbClient::new(channel);
        answers.push(client.generate(text("forever")).await.unwrap().into_inner());
    }
    let mut refused = raw(&server, b"").await;
    let told = rest(&mut refused, Duration::from_secs(2)).await;
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("too many busy connections"), "{told:?}");
    for answer in &mut answers {
        assert!(answer.message().await.unwrap().is_some());
    }
    answers.clear();
    // Idle now: both make way.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(
        code(collect(&connect(&server), text("count")).await.1),
        Code::Ok
    );
}

#[tokio::test]
async fn every_wait_for_a_client_has_an_end() {
    let times = Times {
        handshake: Duration::from_millis(200),
        first_request: Duration::from_millis(600),
        keepalive: (Duration::from_millis(900), Duration::from_millis(300)),
        ..Times::default()
    };
    let (server, _) = crowded(100, Some(0), times).await;
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // A header block that is never complete: HEADERS without END_HEADERS.
    let headers = [0, 0, 1, 1, 0, 0, 0, 0, 1, 0x83];
    let idle = [PREFACE, &settings].concat();
    let half = [PREFACE, &settings, &headers].concat();
    for (bytes, least, most) in [
        (&b""[..], 150, 500),
        (&PREFACE[..12], 150, 500),
        (PREFACE, 150, 500),
        (&idle, 500, 2500),
        (&half, 500, 2500),
    ] {
        let began = Instant::now();
        let mut socket = raw(&server, bytes).await;
        rest(&mut socket, Duration::from_secs(4)).await;
        let took = began.elapsed();
        let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
        assert!(least <= took && took < most, "{bytes:?}: {took:?}");
    }
    let mut half = TcpStream::connect(server.http_address().unwrap())
        .await
        .unwrap();
    half.write_all(b"GET /metrics HTTP/1.1\r\nHo")
        .await
        .unwrap();
    rest(&mut half, Duration::from_secs(2)).await;
    let closed = |reason| sample(&server, "ebb:connections_closed_total{", reason);
    assert_eq!(closed("port=\"grpc\",reason=\"no_handshake\"").await, 3.0);
    assert_eq!(closed("port=\"grpc\",reason=\"no_request\"").await, 2.0);
}

#[tokio::test]
async fn probes_are_answered_whoever_crowds_their_port() {
    let (server, _) = crowded(0, None, Times::default()).await;
    let address = server.http_address().unwrap();
    let mut silent = Vec::new();
    for i in 0..100 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        if i % 2 == 0 {
            socket.write_all(b"GET /met").await.unwrap();
        }
        silent.push(socket);
    }
    let began = Instant::now();
    assert!(get(&server, "/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(sample(&server, "ebb:connections{", "port=\"http\"").await <= 64.0);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn watching_health_keeps_no_connection() {
    let (server, _) = crowded(2, Some(0), Times::default()).await;
    let mut watched = Vec::new();
    for _ in 0..2 {
        let mut health = tonic_health::pb::health_client::HealthClient::new(connect(&server));
        let request = tonic_health::pb::HealthCheckRequest::default();
        watched.push(health.watch(request).await.unwrap());
    }
    let newcomer = connect(&server);
    assert_eq!(code(collect(&newcomer, text("count")).await.1), Code::Ok);
}
