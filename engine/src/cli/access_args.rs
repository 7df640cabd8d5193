//! Flags of `ebb serve` that say who may call: keys and their limits, web pages, certificates.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ebb_serving::access::{Access, KeyLimits};
use ebb_serving::server::{AllowedOrigins, MetricsTls, TlsFiles};

use super::error::CliError;
use super::secret::Secret;

/// Who may call.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Access")]
pub(super) struct AccessArgs {
    /// A key that clients must send, over HTTP and gRPC; may be given several times. Without keys
    /// everybody may call. Other users of this machine see flags: prefer the variable or
    /// --api-key-file.
    #[arg(long, value_name = "KEY", env = "EBB_API_KEY", hide_env_values = true)]
    api_key: Vec<Secret>,
    /// A file of keys, one a line, each with its own limits if wanted: `KEY name=NAME
    /// max-concurrency=N requests-per-minute=N tokens-per-minute=N`. `#` begins a comment. It is
    /// read again when it changes.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Calls that a key may have under way at once, running or waiting, where the file does not say
    /// [default: no limit]. More get RESOURCE_EXHAUSTED or 429.
    #[arg(long, value_name = "N", value_parser = limit())]
    key_max_concurrency: Option<u32>,
    /// Calls that a key may make in a minute, where the file does not say [default: no limit].
    #[arg(long, value_name = "N", value_parser = limit())]
    key_requests_per_minute: Option<u32>,
    /// Tokens of prompts and answers that a key may use in a minute, where the file does not say
    /// [default: no limit].
    #[arg(long, value_name = "N", value_parser = limit())]
    key_tokens_per_minute: Option<u32>,
    /// Web pages that may call the HTTP API: origins such as https://chat.example.com separated by
    /// commas, or * for every page [default: none but the server's own].
    #[arg(long, value_name = "ORIGINS")]
    allowed_origins: Option<AllowedOrigins>,
    /// The server's certificate and those between it and the root, as a PEM file: all ports speak
    /// TLS. It is read again when it changes.
    #[arg(
        long,
        visible_alias = "ssl-certfile",
        value_name = "FILE",
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, as a PEM file.
    #[arg(
        long,
        visible_alias = "ssl-keyfile",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
    /// Authorities of clients' certificates, as a PEM file: clients must have one.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Whether the metrics port speaks TLS, too [default: server].
    #[arg(long, value_enum, value_name = "MODE", requires = "tls_cert")]
    metrics_tls: Option<MetricsPort>,
}

fn limit() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

/// TLS of the metrics port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MetricsPort {
    /// Plain text.
    Off,
    /// TLS without certificates of clients, as Kubernetes' probes need it.
    Server,
    /// As the other ports, with certificates of clients.
    Mutual,
}

/// The same, checked.
pub(super) struct AccessConfig {
    pub(super) access: Access,
    pub(super) allowed_origins: AllowedOrigins,
    pub(super) tls: Option<TlsFiles>,
    pub(super) metrics_tls: MetricsTls,
}

impl AccessArgs {
    /// Reads the file of keys, too.
    ///
    /// # Errors
    /// When keys cannot be used, or there are limits and none to apply them to.
    pub(super) fn config(&self) -> Result<AccessConfig, CliError> {
        let limits = KeyLimits {
            max_concurrency: self.key_max_concurrency,
            requests_per_minute: self.key_requests_per_minute,
            tokens_per_minute: self.key_tokens_per_minute,
        };
        let keys: Vec<_> = self
            .api_key
            .iter()
            .map(|key| key.text().to_owned())
            .collect();
        let access = Access::new(&keys, self.api_key_file.clone(), limits)?;
        if limits != KeyLimits::default() && !access.required() {
            let why = "--key-max-concurrency, --key-requests-per-minute and \
                       --key-tokens-per-minute limit keys, and there are none; add --api-key or \
                       --api-key-file";
            return Err(CliError::Usage(why.into()));
        }
        let tls = self.tls_cert.clone().zip(self.tls_key.clone());
        Ok(AccessConfig {
            access,
            allowed_origins: self.allowed_origins.clone().unwrap_or_default(),
            tls: tls.map(|(cert, key)| TlsFiles {
                cert,
                key,
                client_ca: self.tls_client_ca.clone(),
            }),
            metrics_tls: match self.metrics_tls {
                Some(MetricsPort::Off) => MetricsTls::Off,
                Some(MetricsPort::Server) | None => MetricsTls::Server,
                Some(MetricsPort::Mutual) => MetricsTls::Mutual,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// The flags alone.
    #[derive(Debug, clap::Parser)]
    struct Flags {
        #[command(flatten)]
        access: AccessArgs,
    }

    fn config(flags: &str) -> Result<AccessConfig, String> {
        let flags = ["ebb"].into_iter().chain(flags.split_whitespace());
        let parsed = Flags::try_parse_from(flags).map_err(|error| error.to_string())?;
        assert!(!format!("{parsed:?}").contains("HUSH"));
        parsed.access.config().map_err(|error| error.to_string())
    }

    #[test]
    fn without_flags_everybody_may_call_in_plain_text() {
        let config = config("").unwrap();
        assert!(!config.access.required() && config.tls.is_none());
        assert_eq!(config.allowed_origins, AllowedOrigins::None);
    }

    #[test]
    fn keys_origins_and_certificates_are_taken() {
        let config = config(
            "--api-key HUSH-1 --api-key HUSH-2 --key-max-concurrency 2 --allowed-origins * \
             --ssl-certfile a --ssl-keyfile b --tls-client-ca c --metrics-tls mutual",
        );
        let config = config.unwrap();
        for key in ["HUSH-1", "HUSH-2"] {
            assert!(config.access.key([key].into_iter()).is_ok());
        }
        assert!(config.access.key(["HUSH"].into_iter()).is_err());
        assert_eq!(config.allowed_origins, AllowedOrigins::Any);
        let tls = config.tls.unwrap();
        assert_eq!(tls.client_ca, Some("c".into()));
        assert_eq!(config.metrics_tls, MetricsTls::Mutual);
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_flag_and_without_the_key() {
        for (flags, word) in [
            ("--api-key HUSHé", "--api-key"),
            ("--api-key=", "--api-key"),
            ("--api-key-file /nowhere", "--api-key-file"),
            ("--key-max-concurrency 3", "--api-key"),
            (
                "--api-key HUSH --key-requests-per-minute 0",
                "--key-requests-per-minute",
            ),
            ("--allowed-origins example.com", "--allowed-origins"),
            ("--tls-cert a", "--tls-key"),
            ("--tls-key a", "--tls-cert"),
            ("--tls-client-ca a", "--tls-cert"),
            ("--metrics-tls off", "--tls-cert"),
        ] {
            let error = config(flags).err().expect(flags);
            assert!(
                error.contains(word) && !error.contains("HUSH"),
                "{flags}: {error}"
            );
        }
    }
}
