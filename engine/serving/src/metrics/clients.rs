//! What clients hold of the server.

use super::register::Register;

/// The clients of a server at the time of a scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientGauges {
    /// Connections, by port.
    pub ports: Vec<PortGauges>,
    /// Bytes that clients make the server hold.
    pub memory_held: u64,
    /// Bytes that they may.
    pub memory_limit: u64,
    /// Messages, texts and answers refused for that since the start.
    pub memory_refusals: u64,
    /// Calls since the start whose message did not arrive in time.
    pub late_messages: u64,
}

/// Connections of one port.
#[derive(Debug, Clone, PartialEq)]
pub struct PortGauges {
    /// `grpc`, `api` or `http`.
    pub port: &'static str,
    /// Connections now.
    pub open: usize,
    /// Connections that there may be.
    pub limit: usize,
    /// Connections that clients opened since the start.
    pub accepted: u64,
    /// Of those, the ones that the server closed, by reason.
    pub closed: [(&'static str, u64); 6],
}

impl ClientGauges {
    pub(super) fn set(&self, r: &Register<'_>) {
        r.gauge(
            "ebb:client_memory_bytes",
            "Bytes that clients make the server hold.",
            &[],
        )
        .set(self.memory_held as f64);
        r.gauge(
            "ebb:max_client_memory_bytes",
            "Bytes that clients may make the server hold.",
            &[],
        )
        .set(self.memory_limit as f64);
        r.counter(
            "ebb:client_memory_refusals",
            "Messages, texts and answers refused for want of client memory.",
            &[],
        )
        .absolute(self.memory_refusals);
        r.counter(
            "ebb:late_messages",
            "Calls whose message did not arrive in time.",
            &[],
        )
        .absolute(self.late_messages);
        for port in &self.ports {
            let labels = [("port", port.port)];
            r.gauge("ebb:connections", "Connections of clients.", &labels)
                .set(port.open as f64);
            r.gauge(
                "ebb:max_connections",
                "Connections that clients may have.",
                &labels,
            )
            .set(port.limit as f64);
            r.counter(
                "ebb:connections_accepted",
                "Connections that clients opened, refused ones included.",
                &labels,
            )
            .absolute(port.accepted);
            for (reason, count) in port.closed {
                r.counter(
                    "ebb:connections_closed",
                    "Connections that the server closed or refused.",
                    &[("port", port.port), ("reason", reason)],
                )
                .absolute(count);
            }
        }
    }
}
