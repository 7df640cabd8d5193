//! From PEM files to what rustls needs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;

use super::TlsFiles;

/// Why TLS cannot be spoken. No text repeats what a file holds.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {flag} {}: {why}", path.display())]
    Read {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// A file has not what it should.
    #[error("{flag} {}: {why}", path.display())]
    Content {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is right.
        why: String,
    },
    /// Certificate and key cannot be used together.
    #[error(
        "--tls-cert {} and --tls-key {} cannot be used together: {why}; give a certificate and its \
         own key",
        cert.display(), key.display()
    )]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What rustls says.
        why: String,
    },
}

impl TlsFiles {
    /// The files, in the order in which their contents are given.
    pub(in super::super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let pair = [self.cert.as_path(), self.key.as_path()];
        pair.into_iter().chain(self.client_ca.as_deref())
    }
}

/// What the files hold.
pub(super) struct Material {
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    client_ca: Option<Arc<RootCertStore>>,
}

impl Material {
    /// `contents` in the order of [`TlsFiles::paths`].
    pub(super) fn new(
        files: &TlsFiles,
        contents: &[Result<Vec<u8>, String>],
    ) -> Result<Self, TlsError> {
        let mut contents = contents.iter();
        let mut next = |flag, path: &Path| match contents.next() {
            Some(Ok(bytes)) => Ok(bytes.as_slice()),
            read => Err(TlsError::Read {
                flag,
                path: path.to_owned(),
                why: match read {
                    Some(Err(why)) => why.clone(),
                    _ => "it was not read".to_owned(),
                },
            }),
        };
        let chain = certificates("--tls-cert", &files.cert, next("--tls-cert", &files.cert)?)?;
        let key = PrivateKeyDer::from_pem_slice(next("--tls-key", &files.key)?);
        let key = key.map_err(|_| TlsError::Content {
            flag: "--tls-key",
            path: files.key.clone(),
            why: "it has no private key in PEM form that is not encrypted".to_owned(),
        })?;
        let client_ca = match &files.client_ca {
            Some(path) => Some(Arc::new(roots(path, next("--tls-client-ca", path)?)?)),
            None => None,
        };
        Ok(Self {
            provider: Arc::new(ring::default_provider()),
            chain,
            key,
            client_ca,
        })
    }

    /// TLS that offers one protocol. `mutual` asks for certificates of clients, if there is an
    /// authority for them.
    pub(super) fn config(
        &self,
        files: &TlsFiles,
        alpn: &[u8],
        mutual: bool,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let pair = |error: rustls::Error| TlsError::Pair {
            cert: files.cert.clone(),
            key: files.key.clone(),
            why: error.to_string(),
        };
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(pair)?;
        let client_ca = self.client_ca.as_ref().filter(|_| mutual);
        let builder = match client_ca {
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    roots.clone(),
                    self.provider.clone(),
                );
                let verifier = verifier.build().map_err(|error| TlsError::Content {
                    flag: "--tls-client-ca",
                    path: files.client_ca.clone().unwrap_or_default(),
                    why: error.to_string(),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(self.chain.clone(), self.key.clone_key());
        let mut config = config.map_err(pair)?;
        config.alpn_protocols = vec![alpn.to_vec()];
        if client_ca.is_some() {
            // A session taken up again would pass over the client's certificate, which may have
            // expired meanwhile.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }
}

/// All certificates of a file, which has at least one.
fn certificates(
    flag: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |why: String| TlsError::Content {
        flag,
        path: path.to_owned(),
        why,
    };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| wrong(format!("it is not PEM: {error}")))?;
    if found.is_empty() {
        return Err(wrong("it has no certificate in PEM form".to_owned()));
    }
    Ok(found)
}

/// The authorities of a file.
fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let flag = "--tls-client-ca";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(flag, path, pem)? {
        roots.add(certificate).map_err(|error| TlsError::Content {
            flag,
            path: path.to_owned(),
            why: format!("a certificate cannot be used: {error}"),
        })?;
    }
    Ok(roots)
}
