//! What clients make the server hold.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::hostile::{frame, header};
use super::*;

async fn bounded(bytes: u64, message: Duration) -> (ClientMemory, Server<Fake>, Channel) {
    let memory = ClientMemory::new(bytes);
    let times = Times {
        message,
        unread: Duration::from_millis(200),
        ..Times::default()
    };
    let (server, channel) = bind_with(ConnectionLimits::default(), times, memory.clone()).await;
    server.ready(Fake::new()).await;
    (memory, server, channel)
}

/// Begins a call on `stream` that announces a message of `announced` bytes and sends `sent` zeros.
fn begin(stream: u32, announced: u32, sent: usize) -> Vec<u8> {
    let headers = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", "/ebb.v1.Ebb/Tokenize"),
        header(":authority", "x"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ];
    let mut bytes = frame(1, 4, stream, &headers.concat());
    let mut data = vec![0];
    data.extend(announced.to_be_bytes());
    data.resize(5 + sent, 0);
    for part in data.chunks(16_384) {
        bytes.extend(frame(0, 0, stream, part));
    }
    bytes
}

async fn connection(server: &Server<Fake>) -> TcpStream {
    let mut socket = TcpStream::connect(server.grpc_address()).await.unwrap();
    socket
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    // SETTINGS and WINDOW_UPDATE: now the connection's window is wide.
    let mut settings = [0; 46];
    socket.read_exact(&mut settings).await.unwrap();
    socket
}

#[tokio::test]
async fn messages_that_do_not_end_are_bounded_and_end_in_time() {
    let (memory, server, channel) = bounded(300_000, Duration::from_secs(1)).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut socket = connection(&server).await;
        for call in 0..4 {
            socket
                .write_all(&begin(2 * call + 1, 90_000, 20_000))
                .await
                .unwrap();
        }
        held.push(socket);
    }
    eventually("they fill the memory", || memory.held() > 280_000).await;
    let request = |bytes| v1::TokenizeRequest {
        input: Some(v1::tokenize_request::Input::Text("x".repeat(bytes))),
        ..Default::default()
    };
    let mut client = EbbClient::new(channel);
    let refused = client.tokenize(request(50_000)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().contains("--client-memory"),
        "{}",
        refused.message()
    );
    let metrics = get(&server, "/metrics").await;
    assert!(
        metrics.contains("ebb:max_client_memory_bytes{model_name=\"fake\",engine=\"0\"} 300000")
    );
    // Whoever announced a message and does not send it is told, and gives the memory back.
    eventually("memory comes back", || memory.held() == 0).await;
    assert!(client.tokenize(request(50_000)).await.is_ok());
    let mut told = vec![0; 4096];
    assert!(held[0].read(&mut told).await.unwrap() > 0);
    let metrics = get(&server, "/metrics").await;
    let late = |l: &&str| l.starts_with("ebb:late_messages_total");
    let late = metrics.lines().find(late).unwrap();
    assert!(!late.ends_with(" 0"), "{late}");
}

#[tokio::test]
async fn an_answer_counts_until_it_is_read() {
    let (memory, server, channel) = bounded(20_000_000, Duration::from_secs(30)).await;
    let request = v1::DetokenizeRequest {
        token_ids: vec![100; 40_000],
        ..Default::default()
    };
    // Read at once, it leaves nothing behind.
    let mut client = EbbClient::new(channel);
    let text = client
        .detokenize(request.clone())
        .await
        .unwrap()
        .into_inner()
        .text;
    assert_eq!(text.len(), 200_000);
    eventually("nothing is held", || memory.held() == 0).await;
    // A raw client without a window: the answer stays with the server.
    use prost::Message as _;
    let mut socket = connection(&server).await;
    for call in 0..10 {
        let message = request.encode_to_vec();
        let headers = [
            header(":method", "POST"),
            header(":scheme", "http"),
            header(":path", "/ebb.v1.Ebb/Detokenize"),
            header(":authority", "x"),
            header("content-type", "application/grpc"),
            header("te", "trailers"),
        ];
        let stream = 2 * call + 1;
        let mut bytes = frame(1, 4, stream, &headers.concat());
        let mut data = vec![0];
        data.extend((message.len() as u32).to_be_bytes());
        data.extend(message);
        for part in data.chunks(16_384) {
            bytes.extend(frame(0, 0, stream, part));
        }
        bytes.extend(frame(0, 1, stream, &[]));
        socket.write_all(&bytes).await.unwrap();
    }
    eventually("ten answers wait", || memory.held() > 10 * 190_000).await;
    // Whoever does not read is given up, though the connection lives.
    eventually("nothing is held", || memory.held() == 0).await;
    let metrics = get(&server, "/metrics").await;
    assert!(metrics.contains("reason=\"unread\"} 1"));
}
