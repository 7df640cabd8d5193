//! What clients hold of all ports.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connections::Connections;
use super::incoming::Messages;
use crate::metrics::{ClientGauges, PortGauges};

/// What clients hold, for the metrics.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) grpc: Arc<Connections>,
    pub(super) api: Arc<Connections>,
    pub(super) http: Arc<Connections>,
    pub(super) messages: Messages,
}

impl Clients {
    pub(super) fn gauges(&self) -> ClientGauges {
        let port = |port, connections: &Connections| PortGauges {
            port,
            open: connections.open(),
            limit: connections.limit(),
            accepted: connections.accepted(),
            closed: connections.closed(),
        };
        ClientGauges {
            ports: vec![
                port("grpc", &self.grpc),
                port("api", &self.api),
                port("http", &self.http),
            ],
            memory_held: self.messages.memory.held(),
            memory_limit: self.messages.memory.limit(),
            memory_refusals: self.messages.memory.refused(),
            late_messages: self.messages.late.load(Ordering::Relaxed),
        }
    }
}
