//! The gRPC port without a socket, for tests and fuzzers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::Router;
use ebb_proto::v1;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http::{Request, Response};

use super::busy::Busy;
use super::connections::{Connections, Limits};
use super::incoming::Messages;
use super::service::EbbService;
use super::transport::{Port, Protocol, Times, connection};
use super::unread::Unread;
use super::{Engine, keys, routes};
use crate::access::Access;
use crate::client_memory::ClientMemory;

/// Answers as [`super::Server`] does, whatever the bytes come from. There is no health service,
/// and there are no limits on the number of connections.
#[derive(Clone)]
pub struct InMemory {
    port: Port,
    router: Router,
}

impl InMemory {
    /// A port of `engine`.
    pub fn new<E: Engine>(
        engine: E,
        limits: v1::ServerLimits,
        times: Times,
        memory: ClientMemory,
        access: Access,
    ) -> Self {
        let engine = Arc::new(OnceLock::from(engine));
        let service = EbbService {
            engine: engine.clone(),
            limits,
            started: Instant::now(),
            open: Arc::default(),
        };
        let routes = routes(service).into_axum_router();
        let unlimited = Limits {
            total: usize::MAX,
            per_peer: usize::MAX,
            spares_busy: true,
        };
        let messages = Messages {
            memory,
            time: times.message,
            late: Arc::default(),
        };
        Self {
            port: Port {
                protocol: Protocol::Grpc,
                connections: Connections::new(unlimited),
                times,
                tls: None,
                also_close_idle: Vec::new(),
                messages: Some(messages),
                open: None,
            },
            router: keys::required(routes, &access, &engine),
        }
    }

    /// Answers one call, of which HTTP/2 has told headers and body. Needs a tokio runtime.
    pub async fn call(&self, request: Request<Body>) -> Response<Body> {
        let place = self.port.connections.admit(PEER);
        let place = place.expect("connections are not limited");
        let unread = Unread::of_large_parts(self.port.times.unread);
        let mut service = Busy::new(self.router.clone(), place.key(), &self.port, unread);
        match service.call(request).await {
            Ok(response) => response.map(Body::new),
            Err(never) => match never {},
        }
    }

    /// Answers on one connection until it ends. Needs a tokio runtime.
    pub async fn connection(&self, io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let place = self.port.connections.admit(PEER);
        let place = place.expect("connections are not limited");
        let (_closer, closing) = watch::channel(());
        let (port, router) = (self.port.clone(), self.router.clone());
        let peer = SocketAddr::new(PEER, 0);
        connection(io, peer, Instant::now(), port, router, place, closing).await;
    }
}

/// Whoever it is.
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
