//! Connections of all ports.
//!
//! Tonic's and axum's own accept loops limit neither connections nor how much of a response HTTP/2
//! buffers (400 KiB a stream by default), so hyper serves the connections directly, with the routes
//! that tonic and axum built. Every wait for a client has an end:
//!
//! | what a client owes | ends after | how |
//! |---|---|---|
//! | the TLS handshake, where TLS is spoken | [`Times::handshake`] | closed |
//! | the HTTP/2 handshake | [`Times::handshake`], TLS included | closed |
//! | its first call | [`Times::first_request`] | closed, politely |
//! | the rest of a call's headers, or any sign of life | [`Times::keepalive`] | closed |
//! | the rest of a call's message or body | [`Times::message`] | the call ends with DEADLINE_EXCEEDED or 408 |
//! | to read an answer | [`Times::unread`] | closed |
//! | the rest of an HTTP/1 request's headers, or its next request | [`Times::handshake`] | closed |

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::busy::Busy;
use super::connections::{CloseReason, Connections, Place};
use super::descriptors::CLOSING;
use super::handshake::{Counted, Received};
use super::incoming::Messages;
use super::log_throttle::LogThrottle;
use super::tls::{Presented, handshake};
use super::unread::Unread;

/// Calls at once on one connection.
const MAX_STREAMS_PER_CONNECTION: u32 = 1024;
/// Bytes of one response that HTTP/2 holds for a client whose socket is full, beyond the message
/// being sent.
const SEND_BUFFER_BYTES: usize = 16 * 1024;
/// Bytes of requests that a client may send ahead, per call and per connection.
const RECEIVE_WINDOW_BYTES: (u32, u32) = (256 * 1024, 1024 * 1024);
/// Bytes of headers of one call.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Bytes of a request's headers, and of an answer that waits for the client's socket.
const HTTP1_BUFFER_BYTES: usize = 32 * 1024;
/// The client's preface and the header of its first frame (RFC 9113, section 3.4).
const HTTP2_HANDSHAKE_BYTES: u64 = 24 + 9;
/// A connection that is asked to close gets this long to do so.
pub(super) const PARTING: Duration = Duration::from_secs(1);
/// The pause after the system could not give a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long clients may take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// For the handshakes of TLS and HTTP/2, and for the headers of an HTTP/1 request.
    pub handshake: Duration,
    /// From connecting to the first call. Clients may connect ahead of need; one that is closed
    /// for this connects anew when it has something to ask.
    pub first_request: Duration,
    /// From a call's headers to the end of its message.
    pub message: Duration,
    /// To read an answer, beside a second for every 64 KiB of it.
    pub unread: Duration,
    /// A quiet client is asked for a sign of life this often, and given up when none comes in time.
    pub keepalive: (Duration, Duration),
}

impl Default for Times {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(120),
            message: Duration::from_secs(30),
            unread: Duration::from_secs(120),
            keepalive: (Duration::from_secs(20), Duration::from_secs(10)),
        }
    }
}

/// What is spoken on a port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    Http1,
}

/// A port, apart from what it answers.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) protocol: Protocol,
    pub(super) connections: Arc<Connections>,
    pub(super) times: Times,
    /// The TLS that is spoken; none for plain text.
    pub(super) tls: Option<Presented>,
    /// Whose idle connections are closed, too, when this port finds no descriptor.
    pub(super) also_close_idle: Vec<Arc<Connections>>,
    /// How messages are counted and awaited; none where there are no large ones.
    pub(super) messages: Option<Messages>,
    /// Every call has a receiver of it until its answer is sent, where a shutdown waits for them.
    pub(super) open: Option<Arc<watch::Sender<()>>>,
}

/// Asks the accept loop and every connection to finish what runs and close; `closed` resolves when
/// all have.
pub(super) struct Closer(watch::Sender<()>);

impl Closer {
    /// No new connections and no new calls from now on; returns when the last running call has
    /// ended.
    pub(super) async fn close(self) {
        let _ = self.0.send(());
        self.0.closed().await;
    }
}

/// Answers on `listener` with `router` until closed.
pub(super) fn serve(listener: TcpListener, port: Port, router: Router) -> Closer {
    let (closer, closing) = watch::channel(());
    tokio::spawn(accept(listener, port, router, closing));
    Closer(closer)
}

async fn accept(
    listener: TcpListener,
    port: Port,
    router: Router,
    mut closing: watch::Receiver<()>,
) {
    // Those that make way are still open for a moment: this bounds the descriptors of all.
    let open = Arc::new(Semaphore::new(port.connections.limit() + CLOSING));
    let (full, failed) = (LogThrottle::default(), LogThrottle::default());
    let failed_tls = Arc::new(LogThrottle::default());
    loop {
        let accepted = async {
            let descriptor = open.clone().acquire_owned().await;
            (listener.accept().await, descriptor)
        };
        let (accepted, descriptor) = tokio::select! {
            accepted = accepted => accepted,
            _ = closing.changed() => return,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually too many open files: whoever is idle makes room.
                if let Some(left_out) = failed.turn(Instant::now()) {
                    tracing::warn!(%error, left_out, "cannot accept a connection");
                }
                port.connections.close_idle();
                for others in &port.also_close_idle {
                    others.close_idle();
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = port.connections.admit(peer.ip()) else {
            if let Some(left_out) = full.turn(Instant::now()) {
                tracing::warn!(
                    %peer,
                    left_out,
                    "connection refused: --max-connections or --max-connections-per-peer are \
                     reached and all are busy"
                );
            }
            if port.tls.is_none() {
                let status = "503 Service Unavailable";
                let _ = socket.try_write(&not_served(port.protocol, status, TOO_MANY));
            }
            continue;
        };
        let (port, router, closing) = (port.clone(), router.clone(), closing.clone());
        let failed_tls = failed_tls.clone();
        tokio::spawn(async move {
            match socket.set_nodelay(true) {
                Ok(()) => begin(socket, peer, port, router, place, closing, &failed_tls).await,
                Err(error) => tracing::debug!(%error, "connection lost before it began"),
            }
            drop(descriptor);
        });
    }
}

/// Answers on one connection, after the handshake of TLS where that is spoken.
async fn begin(
    socket: TcpStream,
    peer: SocketAddr,
    port: Port,
    router: Router,
    mut place: Place,
    mut closing: watch::Receiver<()>,
    failed_tls: &LogThrottle,
) {
    let since = Instant::now();
    let Some(tls) = port.tls.clone() else {
        return connection(socket, peer, since, port, router, place, closing).await;
    };
    let secured = handshake(
        socket,
        peer,
        &tls,
        &port,
        &mut place,
        &mut closing,
        failed_tls,
    );
    if let Some(socket) = secured.await {
        connection(socket, peer, since, port, router, place, closing).await;
    }
}

/// Why a client that finds every connection busy is not served.
const TOO_MANY: &str = "the server has too many busy connections; use fewer, or try again later";

/// What tells a client in plain text that it is not served, and why.
pub(super) fn not_served(protocol: Protocol, status: &str, sentence: &str) -> Vec<u8> {
    const ENHANCE_YOUR_CALM: u32 = 11;
    match protocol {
        Protocol::Grpc => {
            // Empty SETTINGS, then GOAWAY: last stream 0, the reason, the sentence.
            let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
            frames.extend([0, 0, 8 + sentence.len() as u8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            frames.extend(ENHANCE_YOUR_CALM.to_be_bytes());
            frames.extend(sentence.as_bytes());
            frames
        }
        Protocol::Http1 => {
            let (kind, code, retry) = match status.starts_with('5') {
                true => ("server_error", "too_many_connections", "Retry-After: 1\r\n"),
                false => ("invalid_request_error", "tls_expected", ""),
            };
            let body = format!(
                r#"{{"error":{{"message":"{sentence}","type":"{kind}","param":null,"code":"{code}"}}}}"#
            );
            let length = body.len();
            format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n{retry}Connection: close\r\n\r\n{body}"
            )
            .into_bytes()
        }
    }
}

pub(super) async fn connection<S>(
    socket: S,
    peer: SocketAddr,
    since: Instant,
    port: Port,
    router: Router,
    mut place: Place,
    mut closing: watch::Receiver<()>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (received, key) = (Received::default(), place.key());
    let unread = match port.protocol {
        Protocol::Grpc => Unread::of_large_parts(port.times.unread),
        Protocol::Http1 => Unread::of_all_parts(port.times.unread),
    };
    let service = Busy::new(router, key.clone(), &port, unread.clone());
    let io = TokioIo::new(Counted::new(socket, received.clone()));
    let builder = builder(port.protocol, &port.times);
    let serving = builder.serve_connection(io, TowerToHyperService::new(service));
    let mut serving = std::pin::pin!(serving);

    let handshake_bytes = match port.protocol {
        Protocol::Grpc => HTTP2_HANDSHAKE_BYTES,
        Protocol::Http1 => 1,
    };
    let silent = async {
        tokio::time::sleep_until((since + port.times.handshake).into()).await;
        if received.bytes() >= handshake_bytes {
            std::future::pending::<()>().await;
        }
    };
    let asks_nothing = async {
        tokio::time::sleep(port.times.first_request).await;
        if key.called() {
            std::future::pending::<()>().await;
        }
    };
    // None when it ended by itself; else why it is closed, and how long it has for that.
    let (why, parting) = tokio::select! {
        result = &mut serving => {
            if let Err(error) = result {
                tracing::debug!(error, %peer, "connection ended");
            }
            return;
        }
        _ = closing.changed() => ("shutdown", Duration::MAX),
        _ = &mut place.closing => {
            (CloseReason::MadeWay.as_str(), if key.called() { PARTING } else { Duration::ZERO })
        }
        () = silent => {
            port.connections.count(CloseReason::NoHandshake);
            (CloseReason::NoHandshake.as_str(), Duration::ZERO)
        }
        () = asks_nothing => {
            port.connections.count(CloseReason::NoRequest);
            (CloseReason::NoRequest.as_str(), PARTING)
        }
        () = unread.overdue() => {
            port.connections.count(CloseReason::Unread);
            (CloseReason::Unread.as_str(), Duration::ZERO)
        }
    };
    tracing::debug!(why, %peer, "closing a connection");
    serving.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(parting, serving).await;
}

fn builder(protocol: Protocol, times: &Times) -> auto::Builder<TokioExecutor> {
    let builder = auto::Builder::new(TokioExecutor::new());
    match protocol {
        Protocol::Grpc => {
            let mut builder = builder.http2_only();
            builder
                .http2()
                .timer(TokioTimer::new())
                .initial_stream_window_size(RECEIVE_WINDOW_BYTES.0)
                .initial_connection_window_size(RECEIVE_WINDOW_BYTES.1)
                .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
                .max_send_buf_size(SEND_BUFFER_BYTES)
                .max_header_list_size(MAX_HEADER_BYTES)
                .keep_alive_interval(times.keepalive.0)
                .keep_alive_timeout(times.keepalive.1);
            builder
        }
        Protocol::Http1 => {
            let mut builder = builder.http1_only();
            builder
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(times.handshake)
                .max_buf_size(HTTP1_BUFFER_BYTES);
            builder
        }
    }
}
