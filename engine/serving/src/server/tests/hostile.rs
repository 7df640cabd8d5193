//! Clients that speak HTTP/2 badly, or not at all.

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::*;
use crate::core::STREAM_LIMIT_BYTES;

/// One HTTP/2 frame (RFC 9113, section 4.1).
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header as HPACK's plainest form: a literal, not indexed, not compressed.
pub(super) fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0, name.len() as u8];
    bytes.extend(name.bytes());
    bytes.push(value.len() as u8);
    bytes.extend(value.bytes());
    bytes
}

/// Everything a client sends to call Generate, with windows so large that only the socket limits
/// what comes back.
fn call_with_endless_windows(prompt: &str) -> Vec<u8> {
    use prost::Message as _;
    const WINDOW: u32 = 0x7fff_ffff - 65_535;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let initial_window_size = [&[0, 4][..], &0x7fff_ffffu32.to_be_bytes()].concat();
    bytes.extend(frame(4, 0, 0, &initial_window_size));
    bytes.extend(frame(8, 0, 0, &WINDOW.to_be_bytes()));
    let headers = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", "/ebb.v1.Ebb/Generate"),
        header(":authority", "x"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ];
    const END_HEADERS: u8 = 4;
    const END_STREAM: u8 = 1;
    bytes.extend(frame(1, END_HEADERS, 1, &headers.concat()));
    let message = text(prompt).encode_to_vec();
    let mut data = vec![0];
    data.extend((message.len() as u32).to_be_bytes());
    data.extend(message);
    bytes.extend(frame(0, END_STREAM, 1, &data));
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_that_is_never_read_holds_a_bounded_amount() {
    let (fake, server, _) = start().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 * 1024).unwrap();
    let mut socket = socket.connect(server.grpc_address()).await.unwrap();
    let call = call_with_endless_windows("flood");
    socket.write_all(&call).await.unwrap();
    let flooded = || fake.0.flooded.load(Ordering::Relaxed);
    eventually("the flood began", || flooded() > 0).await;
    eventually("the flood ended", || {
        fake.0.live.load(Ordering::Relaxed) == 0
    })
    .await;
    // The engine's bound, the messages and HTTP/2 buffers on the way, and what both kernels took.
    let most = STREAM_LIMIT_BYTES + 112 * 1024 + 3 * 64 * 1024;
    assert!(
        (STREAM_LIMIT_BYTES / 2..most).contains(&flooded()),
        "{} bytes",
        flooded()
    );
    drop(socket);
}

#[tokio::test]
async fn garbage_on_the_socket_harms_nobody() {
    let (_fake, server, channel) = start().await;
    let valid = call_with_endless_windows("count");
    let mut held = Vec::new();
    for bytes in [
        &b""[..],
        b"\0\0\0\0\0\0\0\0",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        &valid[..valid.len() - 3], // stops in the middle of the message
        &valid[..40],
    ] {
        let mut socket = TcpStream::connect(server.grpc_address()).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        held.push(socket);
    }
    assert_eq!(code(collect(&channel, text("count")).await.1), Code::Ok);
}
