//! The gRPC server (`ebb.v1`, health, reflection), and all ports: its own, that of the HTTP front
//! ends, and one for metrics and probes alone. All may speak TLS (`tls`); calls may need a key
//! ([`crate::access`]).
//!
//! [`Server::bind`] takes the ports and answers at once: until [`Server::ready`] gives it an
//! engine, health says NOT_SERVING and calls get UNAVAILABLE. [`Server::shut_down`] stops
//! admission, lets the engine finish what runs, and closes.
//!
//! What one client can hold is bounded: a stream's unread output by the engine
//! ([`crate::core::STREAM_LIMIT_BYTES`]) plus at most two messages here and a small HTTP/2 buffer;
//! requests in size, calls per connection and connections in number, in all and per peer, always
//! fewer than the process may open descriptors. All clients together are bounded by
//! [`crate::client_memory`]. Every wait for a client has an end (`transport`).
//! Every call runs in a task of its own, so a panic ends one call.

mod busy;
mod call;
mod clients;
mod config;
mod connections;
mod convert;
mod deadline;
mod descriptors;
mod fields;
mod handshake;
mod health;
mod in_memory;
mod incoming;
mod keys;
mod listen;
mod log_throttle;
mod reload;
mod responses;
mod sampling;
mod serve;
mod service;
mod shutdown;
mod status;
mod tls;
mod transport;
mod unread;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use ebb_proto::v1::ebb_server::EbbServer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::Routes;

pub use config::{BindError, ServerConfig};
pub use convert::{request, responses};
pub use descriptors::{ConnectionLimits, DEFAULT_MAX_CONNECTIONS};
pub use in_memory::InMemory;
pub use listen::ListenError;
pub use serve::{EngineStopped, serve_until_stopped};
pub use shutdown::Signals;
pub use status::{CallError, status};
pub use tls::{MetricsTls, TlsError, TlsFiles};
pub use transport::Times;

use self::clients::Clients;
use self::connections::Connections;
use self::incoming::Messages;
use self::tls::Tls;
use self::transport::{Port, Protocol};
use crate::access::Access;
use crate::anthropic;
pub use crate::front_end::Engine;
pub use crate::http::origins::{AllowedOrigins, OriginError};
use crate::http::{Api, calls, keys as http_keys, origins, probes};
use crate::openai;
use crate::page;

/// Time for the last bytes of the last answer to leave, when clients do not close their
/// connections.
///
/// Connections close by themselves once clients answer that they have understood, but idle clients
/// may take seconds to look (grpcio's takes five).
const LINGER: Duration = Duration::from_millis(500);

/// A server that listens.
pub struct Server<E> {
    engine: Arc<OnceLock<E>>,
    health: health::Health,
    connections: transport::Closer,
    /// Closed when no answer is being sent.
    open: Arc<watch::Sender<()>>,
    follower: JoinHandle<()>,
    api: Option<transport::Closer>,
    http: Option<transport::Closer>,
    grpc_address: SocketAddr,
    api_address: Option<SocketAddr>,
    http_address: Option<SocketAddr>,
    /// Files are followed until it is dropped.
    _follows_files: Sender<()>,
}

impl<E: Engine> Server<E> {
    /// Listens and begins to answer; calls get UNAVAILABLE until [`Self::ready`]. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    /// When a port is taken, an address is not this machine's, or the certificate cannot be used.
    pub async fn bind(config: &ServerConfig) -> Result<Self, BindError> {
        let tls = config
            .tls
            .clone()
            .map(|files| Tls::new(files, config.metrics_tls));
        let tls = tls.transpose()?;
        let grpc = listen::listen(config.grpc, "--port")?;
        let listen = |address: Option<SocketAddr>, flag| {
            let listener = address.map(|address| listen::listen(address, flag));
            listener.transpose()
        };
        let api = listen(config.api, "--http-port")?;
        let http = listen(config.http, "--metrics-port")?;
        let engine = Arc::new(OnceLock::new());
        let open = Arc::new(watch::Sender::new(()));

        let (health, health_service) = tonic_health::server::health_reporter();
        let health = health::Health::new(health).await;
        let service = service::EbbService {
            engine: engine.clone(),
            limits: config.limits,
            started: Instant::now(),
            open: open.clone(),
        };
        let routes = routes(service).add_service(health_service);
        let routes = keys::required(routes.into_axum_router(), &config.access, &engine);

        // A listener knows its address; the one asked for stands in if the system will not say.
        let grpc_address = grpc.local_addr().unwrap_or(config.grpc);
        let local = |listener: &TcpListener| listener.local_addr().unwrap_or(config.grpc);
        let (api_address, http_address) = (api.as_ref().map(local), http.as_ref().map(local));
        let (client_limits, http_limits) =
            descriptors::limits(config.connections, descriptors::allowed());
        let clients = Clients {
            grpc: Connections::new(client_limits),
            api: Connections::new(client_limits),
            http: Connections::new(http_limits),
            messages: Messages {
                memory: config.client_memory.clone(),
                time: config.times.message,
                late: Arc::default(),
            },
        };
        let gauges: probes::Clients = {
            let clients = clients.clone();
            Arc::new(move || clients.gauges())
        };
        let probes = probes::router(engine.clone(), gauges);
        let api = api.map(|listener| {
            let port = Port {
                protocol: Protocol::Http1,
                connections: clients.api.clone(),
                times: config.times,
                tls: tls.as_ref().map(Tls::api),
                also_close_idle: vec![clients.grpc.clone()],
                messages: Some(clients.messages.clone()),
                open: Some(open.clone()),
            };
            let max_body = config.limits.max_message_bytes as usize;
            let api = Api::new(engine.clone(), max_body);
            let front_ends = front_ends(&api, &config.access, config.page);
            transport::serve(
                listener,
                port,
                origins::allowed(front_ends.merge(probes.clone()), &config.allowed_origins),
            )
        });
        let http = http.map(|listener| {
            let port = Port {
                protocol: Protocol::Http1,
                connections: clients.http.clone(),
                times: config.times,
                tls: tls.as_ref().and_then(Tls::http),
                also_close_idle: vec![clients.grpc.clone(), clients.api.clone()],
                messages: None,
                open: None,
            };
            transport::serve(listener, port, probes)
        });
        let port = Port {
            protocol: Protocol::Grpc,
            connections: clients.grpc,
            times: config.times,
            tls: tls.as_ref().map(Tls::grpc),
            also_close_idle: vec![clients.api],
            messages: Some(clients.messages),
            // Only calls of Generate are waited for, not those that watch.
            open: None,
        };
        Ok(Self {
            follower: tokio::spawn(health.clone().follow(engine.clone())),
            connections: transport::serve(grpc, port, routes),
            open,
            engine,
            health,
            api,
            http,
            grpc_address,
            api_address,
            http_address,
            _follows_files: reload::follow(&config.access, tls.as_ref()),
        })
    }

    /// Where gRPC is served.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// Where the HTTP front ends are served.
    pub fn api_address(&self) -> Option<SocketAddr> {
        self.api_address
    }

    /// Where metrics are served.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// The model is loaded: calls are answered from now on. Later calls change nothing.
    pub async fn ready(&self, engine: E) {
        if self.engine.set(engine).is_ok() {
            self.health.set(true).await;
        }
    }

    /// Stops admission (health turns NOT_SERVING), lets what runs finish, and closes; all within
    /// `grace`. Requests that are not done by then end with UNAVAILABLE.
    pub async fn shut_down(self, grace: Duration) {
        let deadline = tokio::time::Instant::now() + grace;
        self.follower.abort();
        let drained = async {
            let Some(engine) = self.engine.get() else {
                return;
            };
            // The last moments are for clients to read how their calls ended.
            let reading = (grace / 10).min(Duration::from_secs(2));
            let drain = engine.drain(grace - reading);
            if tokio::time::timeout_at(deadline, drain).await.is_err() {
                tracing::warn!("the engine did not stop within the grace period");
            }
        };
        // In this order: whoever sees that the server is not well is refused.
        tokio::join!(biased; drained, self.health.set(false));
        self.health.end().await;
        let sent = async {
            self.open.closed().await;
            tokio::time::sleep(LINGER).await;
        };
        let closed = async {
            let api = async {
                if let Some(api) = self.api {
                    api.close().await;
                }
            };
            tokio::join!(self.connections.close(), api);
        };
        tokio::select! {
            () = closed => {}
            () = sent => {}
            () = tokio::time::sleep_until(deadline) => {
                tracing::warn!("some clients had not read their answers when the grace period \
                                ended");
            }
        }
        // Scrapes see the whole shutdown; nothing is lost with those under way.
        drop(self.http);
    }
}

/// What the gRPC port answers besides health.
fn routes<E: Engine>(service: service::EbbService<E>) -> Routes {
    let max_message = service.limits.max_message_bytes as usize;
    let ebb = EbbServer::new(service).max_decoding_message_size(max_message);
    reflection(Routes::new(ebb))
}

/// The HTTP front ends. What holds for all of them (keys and their limits) is a layer here. Routes
/// that are merged beside them, those of the page too, need no key.
fn front_ends<E: Engine>(api: &Api<E>, access: &Access, has_page: bool) -> Router {
    let front_end = |router, shape| {
        let router = http_keys::required(router, access, shape, api.max_body_bytes);
        calls::counted(router, api, shape)
    };
    let openai = front_end(openai::router(api), openai::shape);
    let anthropic = front_end(anthropic::router(api), anthropic::shape);
    let page = match has_page {
        true => calls::counted(page::router(api), api, openai::shape),
        false => Router::new(),
    };
    openai
        .merge(anthropic)
        .merge(page)
        .fallback(openai::unknown_path)
        .method_not_allowed_fallback(openai::wrong_method)
}

/// Adds reflection in both versions that clients speak.
fn reflection(routes: Routes) -> Routes {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(ebb_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let built = "descriptors made by this build decode";
    routes
        .add_service(builder().build_v1().expect(built))
        .add_service(builder().build_v1alpha().expect(built))
}
