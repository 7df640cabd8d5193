//! Listening sockets.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};

/// Bytes that the kernel may hold for a connection whose client does not read (Linux takes twice
/// this).
const SEND_BUFFER_BYTES: u32 = 64 * 1024;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// An address cannot be listened on.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Somebody else listens there.
    #[error(
        "{address} is already in use; stop the other program or choose another port with {flag}"
    )]
    InUse {
        /// Where.
        address: SocketAddr,
        /// The command-line flag that sets the port.
        flag: &'static str,
    },
    /// The system refuses, for another reason.
    #[error(
        "cannot listen on {address}: {source}; choose another address with --host or port with \
         {flag}"
    )]
    Refused {
        /// Where.
        address: SocketAddr,
        /// The command-line flag that sets the port.
        flag: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Listens on `address`; `flag` is named in the error.
///
/// # Errors
/// [`ListenError`] when the address is taken or not ours.
pub(super) fn listen(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ListenError> {
    let bind = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        // Accepted connections inherit it.
        socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address, flag },
        _ => ListenError::Refused {
            address,
            flag,
            source,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_said_in_a_sentence_with_the_flag() {
        let first = listen("127.0.0.1:0".parse().unwrap(), "--port").unwrap();
        let address = first.local_addr().unwrap();
        let error = listen(address, "--port").unwrap_err().to_string();
        assert!(
            error.starts_with(&address.to_string()) && error.contains("--port"),
            "{error}"
        );
        let elsewhere = listen("192.0.2.1:1".parse().unwrap(), "--metrics-port").unwrap_err();
        assert!(
            matches!(elsewhere, ListenError::Refused { .. }),
            "{elsewhere}"
        );
    }
}
