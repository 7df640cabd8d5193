//! Which server is loaded, and that it is meant.

use std::fmt;
use std::net::ToSocketAddrs as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tonic::transport::Uri;

use crate::error::LoadError;

/// What a server says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The protocol that it was reached by.
    pub protocol: String,
    /// Program and version.
    pub server: String,
    /// Name of the model.
    pub model: String,
    /// What computes.
    pub device: String,
    /// What gives way when KV memory is full.
    pub kv_mode: String,
    /// Bytes of the KV cache; 0 where it is not told.
    pub kv_bytes: u64,
    /// Tokens that prompt and answer may have together.
    pub max_context: u32,
    /// Prompts are made of ids below this.
    pub vocab_size: u32,
    /// Ids that prompts leave out.
    pub end_tokens: Vec<u32>,
}

/// Where the load goes.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Target")]
pub struct TargetArgs {
    /// The server's address
    #[arg(long, value_name = "URL", default_value = "127.0.0.1:50051")]
    pub target: String,
    /// What the server speaks there; ebb takes a key from EBB_API_KEY, OpenAI's from OPENAI_API_KEY
    #[arg(long, value_enum, default_value_t = Api::Ebb)]
    pub protocol: Api,
    /// Speak TLS, as with https://; the certificate must be for the address's name
    #[arg(long)]
    pub tls: bool,
    /// With TLS: trust the certificates in this PEM file, and not the system's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Load a server that is not on this machine
    #[arg(long)]
    pub allow_remote: bool,
    /// Connections that requests take in turn; slow readers have one of their own
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub connections: u16,
}

/// What a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Api {
    /// gRPC `ebb.v1`
    Ebb,
    /// OpenAI's HTTP API, `/v1/completions`; also vLLM's
    #[value(name = "openai")]
    OpenAi,
}

/// A server, and how connections to it are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Such as `http://127.0.0.1:50051`.
    pub url: String,
    /// None: in plain text.
    pub tls: Option<Tls>,
    /// None: calls have none.
    pub key: Option<ApiKey>,
}

/// An API key, which is never shown. It comes from the environment alone: results repeat the
/// command line.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// The variable `EBB_API_KEY`.
    fn of_environment() -> Option<Self> {
        let key = std::env::var("EBB_API_KEY").ok()?;
        (!key.is_empty()).then_some(Self(key))
    }

    /// The key.
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Whom to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Certificates in PEM; none: the system's.
    pub ca: Option<Vec<u8>>,
}

impl Address {
    /// A server that speaks plain text.
    pub fn plain(url: String) -> Self {
        Self {
            url,
            tls: None,
            key: None,
        }
    }
}

impl TargetArgs {
    /// Where and how to connect, if that server may be loaded.
    ///
    /// # Errors
    /// A sentence naming the flag to change.
    pub fn address(&self) -> Result<Address, LoadError> {
        let url = self.url()?;
        if self.protocol == Api::OpenAi && url.starts_with("https://") {
            let why = "--protocol openai speaks plain http only; put a proxy before the server";
            return Err(LoadError::Usage(why.into()));
        }
        if !url.starts_with("https://") {
            if self.ca.is_some() {
                let why = "--ca is for TLS, and --target is plain http; add --tls";
                return Err(LoadError::Usage(why.into()));
            }
            return Ok(Address {
                key: ApiKey::of_environment(),
                ..Address::plain(url)
            });
        }
        let read = |path: &PathBuf| std::fs::read(path).map_err(LoadError::file("read", path));
        let ca = self.ca.as_ref().map(read).transpose()?;
        Ok(Address {
            url,
            tls: Some(Tls { ca }),
            key: ApiKey::of_environment(),
        })
    }

    /// The address as a URL, if it may be loaded: every address behind its name is this machine's,
    /// or the user has said that it need not be.
    fn url(&self) -> Result<String, LoadError> {
        let url = if self.target.contains("://") {
            self.target.clone()
        } else {
            let scheme = if self.tls { "https" } else { "http" };
            format!("{scheme}://{}", self.target)
        };
        let wrong = |why: String| LoadError::Usage(format!("--target {:?} {why}", self.target));
        let uri: Uri = url
            .parse()
            .map_err(|e| wrong(format!("is no address ({e}); try http://127.0.0.1:50051")))?;
        match uri.scheme_str() {
            Some("http") if self.tls => {
                return Err(wrong(
                    "begins with http:// and --tls is given; write https://".into(),
                ));
            }
            Some("http" | "https") => {}
            _ => {
                return Err(wrong(
                    "begins neither with http:// nor with https://".into(),
                ));
            }
        }
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri
            .port_u16()
            .ok_or_else(|| wrong("has no port; add one, such as :50051".into()))?;
        if self.allow_remote {
            return Ok(url);
        }
        let addresses = (host, port)
            .to_socket_addrs()
            .map_err(|e| wrong(format!("cannot be resolved ({e})")))?;
        for address in addresses {
            if !address.ip().to_canonical().is_loopback() {
                return Err(wrong(format!(
                    "is {}, which is not this machine's loopback; a load test can take a server \
                     down, so say --allow-remote if you mean it",
                    address.ip()
                )));
            }
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(target: &str, allow_remote: bool) -> Result<String, String> {
        let args = TargetArgs {
            target: target.into(),
            protocol: Api::Ebb,
            tls: false,
            ca: None,
            allow_remote,
            connections: 1,
        };
        args.address().map(|a| a.url).map_err(|e| e.to_string())
    }

    #[test]
    fn this_machine_may_be_loaded() {
        assert_eq!(url("127.0.0.1:5", false).unwrap(), "http://127.0.0.1:5");
        for target in ["http://127.8.8.8:5", "http://[::1]:5", "http://localhost:5"] {
            assert_eq!(url(target, false).unwrap(), target);
        }
    }

    #[test]
    fn other_machines_only_when_told() {
        for target in [
            "http://192.0.2.1:5",
            "http://0.0.0.0:5",
            "http://[2001:db8::1]:5",
            "http://[::ffff:192.0.2.1]:5",
        ] {
            assert!(url(target, false).unwrap_err().contains("--allow-remote"));
            assert!(url(target, true).is_ok());
        }
    }

    #[test]
    fn tls_is_asked_for_by_flag_or_address() {
        let args = |target: &str, tls, ca: Option<&str>| TargetArgs {
            target: target.into(),
            protocol: Api::Ebb,
            tls,
            ca: ca.map(Into::into),
            allow_remote: false,
            connections: 1,
        };
        let trusted = |args: TargetArgs| args.address().unwrap().tls.map(|tls| tls.ca);
        assert_eq!(trusted(args("127.0.0.1:5", false, None)), None);
        for asked in [
            args("127.0.0.1:5", true, None),
            args("https://127.0.0.1:5", false, None),
        ] {
            assert_eq!(asked.address().unwrap().url, "https://127.0.0.1:5");
            assert_eq!(trusted(asked), Some(None));
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(
            trusted(args("127.0.0.1:5", true, Some(path))),
            Some(Some(Vec::new()))
        );
        for (wrong, flag) in [
            (args("127.0.0.1:5", false, Some(path)), "--tls"),
            (args("http://127.0.0.1:5", true, None), "https://"),
            (
                args("127.0.0.1:5", true, Some("/nonexistent.pem")),
                "/nonexistent.pem",
            ),
        ] {
            let found = wrong.address().unwrap_err().to_string();
            assert!(found.contains(flag), "{found}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_flag() {
        for target in ["ftp://127.0.0.1:5", "http://127.0.0.1", "http://", "a b"] {
            assert!(
                url(target, true).unwrap_err().contains("--target"),
                "{target}"
            );
        }
    }
}
