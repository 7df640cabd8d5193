//! TLS on the ports, with certificates of clients where they are asked for, and with files that may
//! be replaced while the server runs.
//!
//! Each new connection takes the certificate of the moment; those that are open keep theirs, so a
//! rotation loses nothing. gRPC speaks HTTP/2 (`h2`), the other ports HTTP/1.1, which is what
//! clients are offered (ALPN).

mod files;
mod handshake;

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;

use crate::small_file;

pub use files::TlsError;
pub(super) use handshake::handshake;

/// Where the certificate is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM: the server's certificate and those between it and the root.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
    /// PEM: authorities of clients' certificates; none where clients need none.
    pub client_ca: Option<PathBuf>,
}

/// TLS on the port of metrics and probes, beside the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MetricsTls {
    /// Plain text.
    Off,
    /// TLS without certificates of clients: Kubernetes has none for its probes.
    #[default]
    Server,
    /// As the other ports: with certificates of clients where they are asked for.
    Mutual,
}

/// What a port presents, which changes when the files do.
pub(super) type Presented = Arc<RwLock<Arc<ServerConfig>>>;

/// TLS of all ports. Clones share it.
#[derive(Clone)]
pub(super) struct Tls {
    files: TlsFiles,
    metrics: MetricsTls,
    grpc: Presented,
    api: Presented,
    http: Presented,
}

/// One of each port.
struct Configs {
    grpc: Arc<ServerConfig>,
    api: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be read or used.
    pub(super) fn new(files: TlsFiles, metrics: MetricsTls) -> Result<Self, TlsError> {
        let contents: Vec<_> = files.paths().map(small_file::read).collect();
        let Configs { grpc, api, http } = configs(&files, metrics, &contents)?;
        let shared = |config| Arc::new(RwLock::new(config));
        Ok(Self {
            files,
            metrics,
            grpc: shared(grpc),
            api: shared(api),
            http: shared(http),
        })
    }

    pub(super) fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// Takes over what the files hold now, given in their order.
    ///
    /// # Errors
    /// [`TlsError`]; then everything stays as it was.
    pub(super) fn load(&self, contents: &[Result<Vec<u8>, String>]) -> Result<(), TlsError> {
        let configs = configs(&self.files, self.metrics, contents)?;
        *self.grpc.write() = configs.grpc;
        *self.api.write() = configs.api;
        *self.http.write() = configs.http;
        Ok(())
    }

    pub(super) fn grpc(&self) -> Presented {
        self.grpc.clone()
    }

    pub(super) fn api(&self) -> Presented {
        self.api.clone()
    }

    /// Of the port of metrics; none where that speaks plain text.
    pub(super) fn http(&self) -> Option<Presented> {
        (self.metrics != MetricsTls::Off).then(|| self.http.clone())
    }
}

fn configs(
    files: &TlsFiles,
    metrics: MetricsTls,
    contents: &[Result<Vec<u8>, String>],
) -> Result<Configs, TlsError> {
    let material = files::Material::new(files, contents)?;
    let http1 = b"http/1.1";
    Ok(Configs {
        grpc: material.config(files, b"h2", true)?,
        api: material.config(files, http1, true)?,
        http: material.config(files, http1, metrics == MetricsTls::Mutual)?,
    })
}
