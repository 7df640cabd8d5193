//! Authorities, certificates, and clients that speak TLS.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Who signs certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) cert: String,
    pub(super) key: String,
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for localhost, valid in these years.
    pub(super) fn issue_for(&self, from: i32, to: i32) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        (params.not_before, params.not_after) =
            (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Identity {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }

    pub(super) fn issue(&self) -> Identity {
        self.issue_for(2020, 4000)
    }
}

impl Identity {
    pub(super) fn write(&self, folder: &Path) {
        std::fs::write(folder.join("tls.crt"), &self.cert).unwrap();
        std::fs::write(folder.join("tls.key"), &self.key).unwrap();
    }

    pub(super) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }
}

/// A client that trusts `authority`, has an `identity` or none, and offers this protocol.
pub(super) fn client(
    authority: &Authority,
    identity: Option<&Identity>,
    alpn: &[u8],
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let pem = authority.pem();
    roots
        .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match identity {
        Some(identity) => {
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            builder
                .with_client_auth_cert(vec![identity.der()], key)
                .unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// A connection on which TLS is spoken.
pub(super) async fn open(
    client: &TlsConnector,
    address: SocketAddr,
) -> io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    client.connect(name, socket).await
}

/// What is answered to a GET of this path, headers included.
pub(super) async fn get(
    client: &TlsConnector,
    address: SocketAddr,
    path: &str,
) -> io::Result<String> {
    let mut stream = open(client, address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}
