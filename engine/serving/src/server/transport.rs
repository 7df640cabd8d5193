//! HTTP/2 connections for gRPC.
//!
//! Tonic's own accept loop cannot limit how much of a response HTTP/2 buffers (400 KiB a stream by
//! default), so the connections are served by hyper directly, with the routes that tonic built.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tonic::service::Routes;

/// Connections served at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 1024;
/// Calls at once on one connection.
const MAX_STREAMS_PER_CONNECTION: u32 = 1024;
/// Bytes of one response that HTTP/2 holds for a client whose socket is full, beyond the message
/// being sent.
const SEND_BUFFER_BYTES: usize = 16 * 1024;
/// Bytes of requests that a client may send ahead, per call and per connection.
const RECEIVE_WINDOW_BYTES: (u32, u32) = (256 * 1024, 1024 * 1024);
/// Bytes of headers of one call.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// A quiet client is asked for a sign of life this often, and given up when none comes in time.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

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

/// Serves `routes` on `listener` until closed.
pub(super) fn serve(listener: TcpListener, routes: Routes) -> Closer {
    let (closer, closing) = watch::channel(());
    tokio::spawn(accept(listener, routes.prepare(), closing));
    Closer(closer)
}

async fn accept(listener: TcpListener, routes: Routes, mut closing: watch::Receiver<()>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            _ = closing.changed() => return,
        };
        match accepted {
            Ok((socket, _)) => {
                let (routes, closing) = (routes.clone(), closing.clone());
                tokio::spawn(async move {
                    connection(socket, routes, closing).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Usually too many open files: waiting lets some close.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(socket: TcpStream, routes: Routes, mut closing: watch::Receiver<()>) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "connection lost before it began");
        return;
    }
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(RECEIVE_WINDOW_BYTES.0)
        .initial_connection_window_size(RECEIVE_WINDOW_BYTES.1)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1);
    let serving = builder.serve_connection(TokioIo::new(socket), TowerToHyperService::new(routes));
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = &mut serving => result,
        _ = closing.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "connection ended");
    }
}
