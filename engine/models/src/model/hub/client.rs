//! Talking to a hub.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Error};

use super::error::HubError;
use super::listing::{ANSWER_BYTES_MAX, Listing};
use super::name::{HubName, MAIN};
use super::retries::{Failure, Retries};
use super::settings::{HubSettings, Patience};
use super::url::{encoded, is_loopback, origin, redirected};

/// Redirects followed for one answer.
const REDIRECTS_MAX: usize = 10;
/// The longest that the headers of an answer may be, in bytes. Signed URLs have some kilobytes.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// The largest file of weights accepted, in bytes; the hub's own limit is half of that.
const WEIGHTS_BYTES_MAX: u64 = 1 << 40;
/// The largest other file accepted, in bytes; the largest tokenizer.json known has 35 MB.
const SMALL_BYTES_MAX: u64 = 256 << 20;

/// A hub, asked about one repository.
pub(super) struct Client<'a> {
    agent: Agent,
    endpoint: Uri,
    authorization: Option<String>,
    settings: &'a HubSettings,
    name: &'a HubName,
}

/// What the hub says about a file before it sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// Its path in the repository.
    pub(super) path: String,
    /// Its hash, and the name of its blob.
    pub(super) etag: String,
    /// In bytes.
    pub(super) size: Option<u64>,
}

impl RemoteFile {
    /// The most bytes that a file of its kind may have.
    pub(super) fn bytes_max(&self) -> u64 {
        let name = self.path.to_lowercase();
        match name.ends_with(".gguf") || name.ends_with(".safetensors") {
            true => WEIGHTS_BYTES_MAX,
            false => SMALL_BYTES_MAX,
        }
    }
}

/// An answer, and who gave it.
struct Answer {
    host: String,
    response: Response<Body>,
}

/// The bytes of a file from some place on.
pub(super) struct Bytes {
    /// Of their first byte.
    pub(super) offset: u64,
    answer: Answer,
}

#[derive(Clone, Copy, PartialEq)]
enum Method {
    Head,
    Get,
}

impl<'a> Client<'a> {
    pub(super) fn new(settings: &'a HubSettings, name: &'a HubName) -> Result<Self, HubError> {
        let unusable = |name, problem| HubError::Setting { name, problem };
        let endpoint: Uri = settings
            .endpoint
            .parse()
            .ok()
            .filter(|uri| origin(uri).is_some() && uri.query().is_none())
            .ok_or_else(|| {
                unusable(
                    "HF_ENDPOINT",
                    "it is no URL with http:// or https:// in front",
                )
            })?;
        let authorization = match &settings.token {
            None => None,
            Some(token) => Some(token.header().ok_or_else(|| {
                unusable("HF_TOKEN", "it has characters that no access token has")
            })?),
        };
        // A plain endpoint may still redirect to HTTPS; it is trusted by the same authorities.
        let certificates = rustls_native_certs::load_native_certs().certs;
        if certificates.is_empty() && endpoint.scheme_str() == Some("https") {
            return Err(HubError::NoCertificates);
        }
        let roots: Vec<Certificate<'static>> = certificates
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .unversioned_rustls_crypto_provider(provider);
        let Patience { connect, read, .. } = settings.patience;
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .user_agent(concat!("ebb/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .http_status_as_error(false)
            .max_redirects(0)
            .max_response_header_size(HEADER_BYTES_MAX)
            .timeout_resolve(Some(connect))
            .timeout_connect(Some(connect))
            .timeout_send_request(Some(read))
            .timeout_recv_response(Some(read))
            .timeout_per_read(Some(read));
        // A proxy of the environment does not lead back to this machine.
        let config = match is_loopback(&endpoint) {
            true => config.proxy(None),
            false => config,
        };
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint,
            authorization,
            settings,
            name,
        })
    }

    /// The commit that the revision stands for, and its files.
    pub(super) fn listing(&self) -> Result<Listing, HubError> {
        let HubName {
            repository,
            revision,
            ..
        } = self.name;
        let revision = encoded(revision, false);
        let url = self.url(&format!("/api/models/{repository}/revision/{revision}"));
        let what = format!("the list of files of {repository}");
        self.again(None, &what, || {
            let answer = self.follow(Method::Get, &url, None, |_, _| false)?;
            let host = answer.host.clone();
            let json = self.whole(answer)?;
            let unusable = |problem| Failure::Answer { host, problem };
            let listing = Listing::parse(&json).map_err(unusable)?;
            let is_commit = self.name.revision.len() == listing.commit.len()
                && self.name.revision.bytes().all(|b| b.is_ascii_hexdigit());
            if is_commit && !listing.commit.eq_ignore_ascii_case(&self.name.revision) {
                let problem = "it is about another commit".to_owned();
                return Err(Failure::Answer {
                    host: host_of(&self.endpoint),
                    problem,
                });
            }
            Ok(listing)
        })
    }

    /// What there is to know about a file of a commit.
    pub(super) fn file(&self, commit: &str, path: &str) -> Result<RemoteFile, HubError> {
        let url = self.file_url(commit, path);
        let what = format!("{path} of {}", self.name.repository);
        self.again(Some(path), &what, || {
            // A redirect to where the bytes are kept says it all; one within the hub, to the new
            // name of a repository, does not.
            let says_it = |headers: &HeaderMap, leaves: bool| {
                headers.contains_key("x-linked-etag") || leaves && headers.contains_key("etag")
            };
            let answer = match self.follow(Method::Head, &url, None, says_it) {
                Err(Failure::Status {
                    status: 405 | 501, ..
                }) => self.follow(Method::Get, &url, None, says_it),
                answer => answer,
            }?;
            remote_file(path, &answer)
        })
    }

    /// The bytes of a file from `offset` on, or all of them.
    ///
    /// # Errors
    /// Why this attempt failed.
    pub(super) fn bytes(
        &self,
        commit: &str,
        file: &RemoteFile,
        offset: u64,
    ) -> Result<Bytes, Failure> {
        let url = self.file_url(commit, &file.path);
        let range = (offset > 0).then(|| format!("bytes={offset}-"));
        let answer = match self.follow(Method::Get, &url, range.as_deref(), |_, _| false) {
            // Nothing from there on: what is here is not a part of it.
            Err(Failure::Status { status: 416, .. }) if range.is_some() => {
                self.follow(Method::Get, &url, None, |_, _| false)?
            }
            answer => answer?,
        };
        let is_size = |total: Option<u64>| {
            let both = total.zip(file.size);
            both.is_none_or(|(total, size)| total == size)
        };
        let offset = match answer.response.status().as_u16() {
            206 => match content_range(answer.response.headers()) {
                Some((start, total)) if start == offset && is_size(total) => start,
                _ => {
                    return Err(Failure::Answer {
                        host: answer.host,
                        problem: "it is another part of the file than was asked for".to_owned(),
                    });
                }
            },
            _ => 0,
        };
        Ok(Bytes { offset, answer })
    }

    /// An error in a sentence, of what failed for the last time.
    pub(super) fn error(&self, failure: Failure, file: Option<&str>, what: &str) -> HubError {
        let HubName {
            repository,
            revision,
            ..
        } = self.name.clone();
        let endpoint = shown(&self.endpoint);
        let token = self.authorization.is_some();
        let what = what.to_owned();
        match failure {
            Failure::Status {
                status,
                code,
                retry_after,
            } => match (status, code.as_str(), file) {
                (401 | 403, "GatedRepo", _) => HubError::Gated {
                    page: format!("{endpoint}/{repository}"),
                    repository,
                    token,
                },
                (404, "RevisionNotFound", _) => HubError::NoRevision {
                    repository,
                    revision,
                },
                (401 | 403, _, _) => HubError::Access {
                    repository,
                    status,
                    token,
                },
                (404, _, Some(file)) => HubError::NoFile {
                    repository,
                    file: file.to_owned(),
                },
                // Which of both is missing, not every hub says.
                (404, "", None) if revision != MAIN => HubError::NoRepository {
                    repository: format!("{repository} with a revision {revision}"),
                    endpoint,
                },
                (404, _, None) => HubError::NoRepository {
                    repository,
                    endpoint,
                },
                (429, _, _) => HubError::TooManyRequests {
                    endpoint,
                    seconds: retry_after,
                },
                _ => HubError::Status {
                    endpoint,
                    status,
                    what,
                },
            },
            Failure::Cut { host, problem } | Failure::Network { host, problem } => {
                HubError::Network {
                    what,
                    host,
                    problem,
                }
            }
            Failure::Answer { host, problem } => HubError::Answer {
                what,
                host,
                problem,
            },
        }
    }

    pub(super) fn repository(&self) -> &str {
        &self.name.repository
    }

    pub(super) fn patience(&self) -> &'a Patience {
        &self.settings.patience
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.settings.endpoint)
    }

    fn file_url(&self, commit: &str, path: &str) -> String {
        let repository = &self.name.repository;
        self.url(&format!(
            "/{repository}/resolve/{commit}/{}",
            encoded(path, true)
        ))
    }

    fn again<T>(
        &self,
        file: Option<&str>,
        what: &str,
        mut once: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let mut retries = Retries::new(self.patience());
        loop {
            let failure = match once() {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let waited = retries.wait(failure, what);
            waited.map_err(|failure| self.error(failure, file, what))?;
        }
    }

    /// Asks for `url`, and then for what redirects lead to, until a success, or a redirect that is
    /// `enough` by its headers and whether it leaves the endpoint. The token does not leave it.
    fn follow(
        &self,
        method: Method,
        url: &str,
        range: Option<&str>,
        enough: impl Fn(&HeaderMap, bool) -> bool,
    ) -> Result<Answer, Failure> {
        let mut uri: Uri = url.parse().map_err(|_| Failure::Answer {
            host: host_of(&self.endpoint),
            problem: "the name makes no URL".to_owned(),
        })?;
        for _ in 0..=REDIRECTS_MAX {
            let asked = host_of(&uri);
            let mut request = match method {
                Method::Head => self.agent.head(&uri),
                Method::Get => self.agent.get(&uri),
            };
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            if let Some(authorization) = &self.authorization
                && origin(&uri) == origin(&self.endpoint)
            {
                request = request.header("Authorization", authorization);
            }
            let response = request.call().map_err(|error| failed(error, &asked))?;
            let status = response.status().as_u16();
            let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
            if matches!(status, 400..416) && origin(&uri) != origin(&self.endpoint) {
                // Its word is none about the repository: perhaps a signature has expired.
                return Err(Failure::Cut {
                    host: asked,
                    problem: format!("it answered {status}"),
                });
            }
            if !is_redirect && !matches!(status, 200 | 206) {
                return Err(Failure::Status {
                    status,
                    code: text(response.headers(), "x-error-code").unwrap_or_default(),
                    retry_after: number(response.headers(), "retry-after"),
                });
            }
            let answer = Answer {
                host: asked,
                response,
            };
            if !is_redirect {
                return Ok(answer);
            }
            let location = text(answer.response.headers(), "location").unwrap_or_default();
            let Some(to) = redirected(&uri, &location) else {
                return Err(Failure::Answer {
                    host: answer.host,
                    problem: "it redirects to what is no URL, or from HTTPS to plain HTTP"
                        .to_owned(),
                });
            };
            let leaves = origin(&to) != origin(&self.endpoint);
            if enough(answer.response.headers(), leaves) {
                return Ok(answer);
            }
            uri = to;
        }
        Err(Failure::Answer {
            host: host_of(&uri),
            problem: format!("more than {REDIRECTS_MAX} redirects follow each other"),
        })
    }

    /// The body of a short answer.
    fn whole(&self, answer: Answer) -> Result<Vec<u8>, Failure> {
        let mut bytes = Bytes { offset: 0, answer };
        let mut pace = Pace::new(self.patience());
        let (mut whole, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let n = bytes.read(&mut buffer, &mut pace)?;
            if n == 0 {
                return Ok(whole);
            }
            whole.extend_from_slice(&buffer[..n]);
            if whole.len() as u64 > ANSWER_BYTES_MAX {
                return Err(Failure::Answer {
                    host: bytes.answer.host,
                    problem: format!("it has more than {ANSWER_BYTES_MAX} bytes"),
                });
            }
        }
    }
}

impl Bytes {
    /// Who sends them.
    pub(super) fn host(&self) -> &str {
        &self.answer.host
    }

    /// The next bytes; 0 at their end.
    pub(super) fn read(&mut self, out: &mut [u8], pace: &mut Pace) -> Result<usize, Failure> {
        let host = &self.answer.host;
        let read = self.answer.response.body_mut().as_reader().read(out);
        let n = read.map_err(|error| failed(error.into(), host))?;
        match n == 0 || pace.is_kept(n as u64) {
            true => Ok(n),
            false => Err(Failure::Cut {
                host: host.clone(),
                problem: "hardly anything comes any more".to_owned(),
            }),
        }
    }
}

/// Watches that bytes come at all.
pub(super) struct Pace {
    window: Duration,
    since: Instant,
    bytes: u64,
}

impl Pace {
    pub(super) fn new(patience: &Patience) -> Self {
        Self {
            window: patience.slow,
            since: Instant::now(),
            bytes: 0,
        }
    }

    /// Counts bytes that came; false if a whole window brought too few.
    fn is_kept(&mut self, bytes: u64) -> bool {
        self.bytes += bytes;
        if self.since.elapsed() < self.window {
            return true;
        }
        let kept = self.bytes >= Patience::SLOW_BYTES;
        (self.since, self.bytes) = (Instant::now(), 0);
        kept
    }
}

/// What the headers of `answer` say about a file.
fn remote_file(path: &str, answer: &Answer) -> Result<RemoteFile, Failure> {
    let headers = answer.response.headers();
    let unusable = |problem: String| Failure::Answer {
        host: answer.host.clone(),
        problem,
    };
    let etag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"));
    let etag = etag.as_deref().map(bare_etag).unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if etag.is_empty() || etag.len() > 128 || etag.starts_with('.') || !etag.chars().all(plain) {
        return Err(unusable(
            "it has no ETag that a file can be kept by".to_owned(),
        ));
    }
    let is_whole = answer.response.status().as_u16() == 200;
    let length = || number(headers, "content-length").filter(|_| is_whole);
    let size = number(headers, "x-linked-size").or_else(length);
    let file = RemoteFile {
        path: path.to_owned(),
        etag: etag.to_owned(),
        size,
    };
    let limit = file.bytes_max();
    match size.filter(|bytes| *bytes > limit) {
        Some(bytes) => Err(unusable(format!(
            "the file should have {bytes} bytes; at most {limit} are supported"
        ))),
        None => Ok(file),
    }
}

/// Without quotes, and without the mark of a weak one.
fn bare_etag(etag: &str) -> &str {
    let etag = etag.strip_prefix("W/").unwrap_or(etag);
    etag.trim_matches('"')
}

/// Start and total of `bytes START-END/TOTAL`.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = text(headers, "content-range")?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    Some((start, total.trim().parse().ok()))
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned())
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.parse().ok()
}

/// An endpoint for errors, without a user and password that it may have.
fn shown(endpoint: &Uri) -> String {
    let scheme = endpoint.scheme_str().unwrap_or_default();
    let path = endpoint.path().trim_end_matches('/');
    format!("{scheme}://{}{path}", host_of(endpoint))
}

/// For errors: no user and password that a URL may have, and no signature.
fn host_of(uri: &Uri) -> String {
    let port = uri.port_u16().map(|port| format!(":{port}"));
    let host = uri.host().unwrap_or("?");
    format!("{host}{}", port.unwrap_or_default())
}

/// What ureq says, in words that do not repeat the URL.
fn failed(error: Error, host: &str) -> Failure {
    let host = host.to_owned();
    let cut = |problem: String| Failure::Cut {
        host: host.clone(),
        problem,
    };
    let network = |problem: String| Failure::Network {
        host: host.clone(),
        problem,
    };
    match error {
        Error::Io(error) => cut(error.to_string()),
        Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
            cut("no connection came about in time".to_owned())
        }
        Error::Timeout(_) => cut("no answer came in time".to_owned()),
        Error::ConnectionFailed => cut("no connection came about".to_owned()),
        Error::Protocol(error) => cut(format!("the answer is no HTTP ({error})")),
        Error::HostNotFound => network("there is no host of that name".to_owned()),
        Error::Rustls(error) => network(format!("TLS failed: {error}")),
        Error::Tls(problem) => network(format!("TLS failed: {problem}")),
        Error::ConnectProxyFailed(problem) => network(format!("the proxy refused: {problem}")),
        Error::BadUri(_) | Error::Http(_) => network("the URL makes no request".to_owned()),
        error => network(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_the_tools_read_them() {
        for (given, expected) in [("\"abc\"", "abc"), ("W/\"abc\"", "abc"), ("abc", "abc")] {
            assert_eq!(bare_etag(given), expected);
        }
        let range = |text: &'static str| {
            let value = text.parse().expect("a header");
            content_range(&HeaderMap::from_iter([(
                ureq::http::header::CONTENT_RANGE,
                value,
            )]))
        };
        assert_eq!(range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(range("bytes 5-9/*"), Some((5, None)));
        assert_eq!(range("bytes */10"), None);
        assert_eq!(range("lines 1-2/3"), None);
    }
}
