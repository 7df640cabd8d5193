//! What a client sends on a connection to the gRPC port. The first byte says how it is to be read:
//!
//! - 0: as it is, from HTTP/2's preface on;
//! - 1: as frames behind a sound preface;
//! - else: as the body of a call whose number it is, cut into DATA frames of the length that the
//!   second byte gives.

use std::time::Duration;

use ebb_proto::v1;
use ebb_serving::access::Access;
use ebb_serving::client_memory::ClientMemory;
use ebb_serving::server::{InMemory, Times};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::runtime::{Builder, Runtime};

use super::engine::Checks;
use super::protobuf::PATHS;

/// What clients may make the server hold.
const CLIENT_MEMORY_BYTES: u64 = 1 << 20;
/// The largest message.
const MESSAGE_BYTES_MAX: u32 = 4096;
/// Bytes that are under way.
const SOCKET_BYTES: usize = 64 << 10;
/// How long a connection may go on once its client has gone.
const TIME: Duration = Duration::from_secs(5);

/// A port and what its clients hold.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) port: InMemory,
    memory: ClientMemory,
}

impl Server {
    /// Everything is given back once calls and connections have ended.
    pub(super) async fn assert_nothing_held(&self) {
        for _ in 0..100 {
            if self.memory.held() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} bytes are still held", self.memory.held());
    }
}

pub(super) fn in_memory() -> Server {
    let limits = v1::ServerLimits {
        max_running: 1,
        max_waiting: 1,
        max_step_tokens: 16,
        max_message_bytes: MESSAGE_BYTES_MAX,
    };
    let memory = ClientMemory::new(CLIENT_MEMORY_BYTES);
    let access = Access::open();
    Server {
        port: InMemory::new(
            Checks::new(),
            limits,
            Times::default(),
            memory.clone(),
            access,
        ),
        memory,
    }
}

pub(super) fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime")
}

pub(crate) fn run(bytes: &[u8]) {
    thread_local!(static RUNTIME: Runtime = runtime());
    thread_local!(static SERVER: Server = in_memory());
    let Some((&first, rest)) = bytes.split_first() else {
        return;
    };
    let sent = match first {
        0 => rest.to_owned(),
        1 => [&preface()[..], rest].concat(),
        call => {
            let Some((&length, body)) = rest.split_first() else {
                return;
            };
            let path = PATHS[usize::from(call) % PATHS.len()];
            [preface(), self::call(path, body, length)].concat()
        }
    };
    let server = SERVER.with(Clone::clone);
    RUNTIME.with(|runtime| runtime.block_on(connection(server, &sent)));
}

async fn connection(server: Server, sent: &[u8]) {
    let (mut client, socket) = duplex(SOCKET_BYTES);
    let client = async {
        // Writing fails where the server has closed the connection.
        let (mut from, mut to) = tokio::io::split(&mut client);
        let write = async {
            let _ = to.write_all(sent).await;
            let _ = to.shutdown().await;
        };
        let read = async {
            let mut answer = Vec::new();
            let _ = from.read_to_end(&mut answer).await;
        };
        tokio::join!(write, read);
    };
    let both = async { tokio::join!(client, server.port.connection(socket)) };
    let ended = tokio::time::timeout(TIME, both).await;
    ended.expect("a connection ends with its client");
    server.assert_nothing_held().await;
}

/// HTTP/2's preface and empty settings.
pub(crate) fn preface() -> Vec<u8> {
    [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &frame(SETTINGS, 0, 0, &[]),
    ]
    .concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// One HTTP/2 frame (RFC 9113, section 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header as HPACK's plainest form: a literal, not indexed, not compressed.
fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0, name.len() as u8];
    bytes.extend(name.bytes());
    bytes.push(value.len() as u8);
    bytes.extend(value.bytes());
    bytes
}

/// A call's headers, and its body in frames of so many bytes.
pub(crate) fn call(path: &str, body: &[u8], length: u8) -> Vec<u8> {
    let headers = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", path),
        header(":authority", "x"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ];
    let mut bytes = frame(HEADERS, END_HEADERS, 1, &headers.concat());
    for part in body.chunks(usize::from(length).max(1)) {
        bytes.extend(frame(DATA, 0, 1, part));
    }
    bytes.extend(frame(DATA, END_STREAM, 1, &[]));
    bytes
}
