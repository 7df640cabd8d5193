//! TLS handshakes of clients, which have an end like every wait for a client.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::super::connections::{CloseReason, Place};
use super::super::log_throttle::LogThrottle;
use super::super::transport::{PARTING, Port, not_served};
use super::Presented;

/// The first byte of a TLS connection: a record of a handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Bytes of an answer that TLS holds for a client whose socket is full.
const SEND_BUFFER_BYTES: usize = 16 * 1024;

/// The connection once TLS is spoken on it; none when the client does not come so far.
pub(in super::super) async fn handshake(
    socket: TcpStream,
    peer: SocketAddr,
    tls: &Presented,
    port: &Port,
    place: &mut Place,
    closing: &mut watch::Receiver<()>,
    failures: &LogThrottle,
) -> Option<TlsStream<TcpStream>> {
    let shaken = tokio::time::timeout(port.times.handshake, accept(socket, tls, port));
    let shaken = tokio::select! {
        shaken = shaken => shaken,
        _ = &mut place.closing => return None,
        _ = closing.changed() => return None,
    };
    match shaken {
        Ok(Ok(Some(stream))) => Some(stream),
        Ok(Ok(None)) => {
            tracing::debug!(%peer, "the client closed the connection before it began");
            None
        }
        Ok(Err(error)) => {
            port.connections.count(CloseReason::Tls);
            // Of what the client sent, rustls names kinds and numbers alone.
            if let Some(left_out) = failures.turn(Instant::now()) {
                tracing::warn!(%peer, %error, left_out, "a TLS handshake failed");
            }
            None
        }
        Err(_) => {
            port.connections.count(CloseReason::NoHandshake);
            None
        }
    }
}

async fn accept(
    mut socket: TcpStream,
    tls: &Presented,
    port: &Port,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    if socket.peek(&mut first).await? == 0 {
        // Balancers look so whether the port is there: no handshake has failed.
        return Ok(None);
    }
    if first != [HANDSHAKE_RECORD] {
        // A client that is written to while it still sends might not read the answer.
        let sentence = "this port speaks TLS; use an address that begins with https://";
        let _ = socket.try_write(&not_served(port.protocol, "400 Bad Request", sentence));
        let _ = socket.shutdown().await;
        let rest = async { while socket.read(&mut [0; 4096]).await.is_ok_and(|n| n > 0) {} };
        let _ = tokio::time::timeout(PARTING, rest).await;
        return Err(io::Error::other("the client does not speak TLS"));
    }
    let config = tls.read().clone();
    let limited = |connection: &mut rustls::ServerConnection| {
        connection.set_buffer_limit(Some(SEND_BUFFER_BYTES));
    };
    let shaken = TlsAcceptor::from(config).accept_with(socket, limited);
    shaken.await.map(Some)
}
