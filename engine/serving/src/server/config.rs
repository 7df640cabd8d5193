//! What a server is told before it listens.

use std::net::SocketAddr;

use ebb_proto::v1;
use thiserror::Error;

use super::descriptors::ConnectionLimits;
use super::listen::ListenError;
use super::tls::{MetricsTls, TlsError, TlsFiles};
use super::transport::Times;
use crate::access::Access;
use crate::client_memory::ClientMemory;
use crate::http::origins::AllowedOrigins;

/// Where to listen, and limits.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Address of the gRPC port; port 0 lets the system choose.
    pub grpc: SocketAddr,
    /// Address of the port of the HTTP front ends; none when they are not wanted.
    pub api: Option<SocketAddr>,
    /// Whether that port has a page to look at.
    pub page: bool,
    /// Address of the port for metrics and probes alone; none when it is not wanted.
    pub http: Option<SocketAddr>,
    /// Limits told by GetServerInfo; `max_message_bytes` is enforced here.
    pub limits: v1::ServerLimits,
    /// How many connections clients may have.
    pub connections: ConnectionLimits,
    /// How long clients may take.
    pub times: Times,
    /// What clients may make the server hold.
    pub client_memory: ClientMemory,
    /// Who may call, and how much.
    pub access: Access,
    /// Which web pages may call the HTTP front ends.
    pub allowed_origins: AllowedOrigins,
    /// The certificate that the ports present; none where they speak plain text.
    pub tls: Option<TlsFiles>,
    /// Whether the port for metrics speaks TLS, too.
    pub metrics_tls: MetricsTls,
}

/// Why a server cannot listen.
#[derive(Debug, Error)]
pub enum BindError {
    /// A port cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// TLS cannot be spoken.
    #[error(transparent)]
    Tls(#[from] TlsError),
}
