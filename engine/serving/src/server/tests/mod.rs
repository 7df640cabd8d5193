//! The servers over real sockets, with a scripted engine and tonic's own client.

mod calls;
mod certificates;
mod crowd;
mod hostile;
mod http_api;
mod keys;
mod lifecycle;
mod limits;
mod malformed;
mod memory;
mod oversized;
mod rotation;
mod tls;

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ebb_proto::v1;
use ebb_proto::v1::ebb_client::EbbClient;
use ebb_proto::v1::generate_response::Event;
use http_body::Body as _;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{AllowedOrigins, ConnectionLimits, InMemory, MetricsTls, Server, ServerConfig, Times};
use crate::access::Access;
use crate::client_memory::ClientMemory;
use crate::front_end::fake::Fake;

/// A small window, so that little output hides in the client.
const CLIENT_WINDOW_BYTES: u32 = 65_535;

const LIMITS: v1::ServerLimits = v1::ServerLimits {
    max_running: 2,
    max_waiting: 3,
    max_step_tokens: 4,
    max_message_bytes: 100_000,
};

async fn bind() -> (Server<Fake>, Channel) {
    let memory = ClientMemory::new(8 << 20);
    bind_with(ConnectionLimits::default(), Times::default(), memory).await
}

/// A port without sockets.
fn in_memory() -> (Fake, InMemory) {
    let fake = Fake::new();
    let memory = ClientMemory::new(8 << 20);
    let times = Times::default();
    let port = InMemory::new(fake.clone(), LIMITS, times, memory, Access::open());
    (fake, port)
}

/// How a call with this body ends.
async fn ask(port: &InMemory, method: &str, body: Vec<u8>) -> Status {
    let call = Request::post(format!("/ebb.v1.Ebb/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(axum::body::Body::from(body)));
    let answer = port.call(call.expect("a request")).await;
    let (head, mut body) = answer.into_parts();
    let mut status = Status::from_header_map(&head.headers);
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let trailers = frame.expect("an answer").into_trailers();
        status = trailers
            .ok()
            .as_ref()
            .and_then(Status::from_header_map)
            .or(status);
    }
    status.expect("every answer has a status")
}

/// Ports of this machine that everybody may use, in plain text.
fn loopback() -> ServerConfig {
    let loopback = "127.0.0.1:0".parse().unwrap();
    ServerConfig {
        grpc: loopback,
        api: Some(loopback),
        page: true,
        http: Some(loopback),
        limits: LIMITS,
        connections: ConnectionLimits::default(),
        times: Times::default(),
        client_memory: ClientMemory::new(8 << 20),
        access: Access::open(),
        allowed_origins: AllowedOrigins::None,
        tls: None,
        metrics_tls: MetricsTls::Off,
    }
}

async fn bind_with(
    connections: ConnectionLimits,
    times: Times,
    memory: ClientMemory,
) -> (Server<Fake>, Channel) {
    let config = ServerConfig {
        connections,
        times,
        client_memory: memory,
        ..loopback()
    };
    let server = Server::bind(&config)
        .await
        .expect("loopback has free ports");
    let channel = connect(&server);
    (server, channel)
}

/// A new connection, made when it is first used.
fn connect(server: &Server<Fake>) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc_address())).unwrap();
    endpoint
        .initial_stream_window_size(CLIENT_WINDOW_BYTES)
        .initial_connection_window_size(CLIENT_WINDOW_BYTES)
        .connect_lazy()
}

async fn start() -> (Fake, Server<Fake>, Channel) {
    let (server, channel) = bind().await;
    let fake = Fake::new();
    server.ready(fake.clone()).await;
    (fake, server, channel)
}

fn text(prompt: &str) -> v1::GenerateRequest {
    let prompt = Some(v1::generate_request::Prompt::Text(prompt.into()));
    v1::GenerateRequest {
        prompt,
        ..Default::default()
    }
}

/// Everything that a call answers: its events, and the status if it is not OK.
async fn collect(channel: &Channel, request: v1::GenerateRequest) -> (Vec<Event>, Option<Status>) {
    let mut events = Vec::new();
    let mut stream = match EbbClient::new(channel.clone()).generate(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return (events, Some(status)),
    };
    loop {
        match stream.message().await {
            Ok(Some(message)) => events.push(message.event.expect("every response has an event")),
            Ok(None) => return (events, None),
            Err(status) => return (events, Some(status)),
        }
    }
}

/// Polls until `holds` does; fails after five seconds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within five seconds: {what}");
}

/// The body of a GET over the HTTP port, headers included.
async fn get(server: &Server<Fake>, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let address = server.http_address().unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let exchange = move || {
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    };
    tokio::task::spawn_blocking(exchange).await.unwrap()
}

fn code(status: Option<Status>) -> Code {
    status.map_or(Code::Ok, |s| s.code())
}
