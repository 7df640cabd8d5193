//! A hub on loopback, and the server that it redirects to for large files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ebb_models::model::hub::{HubSettings, Patience};
use sha1::Digest as _;

/// Of the one revision that there is.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const REPOSITORY: &str = "org/tiny";

/// A request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Which of the two servers was asked.
    pub(crate) at_hub: bool,
    pub(crate) method: String,
    pub(crate) path: String,
    headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// An answer, or what goes wrong with one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes of the body after which the connection is closed.
    pub(crate) cut: Option<usize>,
    /// What is waited before the body.
    pub(crate) pause: Duration,
    /// Announced instead of the body's length; none is announced for `Some(None)`.
    pub(crate) length: Option<Option<u64>>,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            ..Self::default()
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The part of it that the `Range` of a request asks for.
    pub(crate) fn ranged(mut self, request: &Request) -> Self {
        let range = request.header("range").and_then(|range| {
            let start = range.strip_prefix("bytes=")?.strip_suffix('-')?;
            start.parse::<usize>().ok()
        });
        let total = self.body.len();
        match range {
            Some(start) if start >= total => Self::status(416),
            Some(start) => {
                self.status = 206;
                self.body.drain(..start);
                self.with(
                    "Content-Range",
                    format!("bytes {start}-{}/{total}", total - 1),
                )
            }
            None => self,
        }
    }
}

type Fault = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    fault: Box<Fault>,
    requests: Mutex<Vec<Request>>,
    hub: SocketAddr,
    store: SocketAddr,
}

/// The two servers. They end with the process.
pub(crate) struct Hub(Arc<Shared>);

impl Hub {
    /// A hub with these files; those of weights are on the other server.
    pub(crate) fn new(files: &[(&str, Vec<u8>)]) -> Self {
        Self::with_fault(files, |_| None)
    }

    /// The same, where `fault` answers some requests.
    pub(crate) fn with_fault(
        files: &[(&str, Vec<u8>)],
        fault: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [hub, store] = [0, 1].map(|i: usize| listeners[i].local_addr().expect("an address"));
        let files = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.clone()));
        let shared = Arc::new(Shared {
            files: files.collect(),
            fault: Box::new(fault),
            requests: Mutex::default(),
            hub,
            store,
        });
        for (listener, at_hub) in listeners.into_iter().zip([true, false]) {
            let shared = shared.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = shared.clone();
                    std::thread::spawn(move || shared.serve(stream, at_hub));
                }
            });
        }
        Self(shared)
    }

    /// What a client with this cache is told. It is patient for a test's time.
    pub(crate) fn settings(&self, cache: &Path) -> HubSettings {
        HubSettings {
            caches: vec![cache.to_owned()],
            endpoint: format!("http://{}", self.0.hub),
            patience: Patience {
                read: Duration::from_millis(400),
                slow: Duration::from_millis(600),
                wait: Duration::from_millis(2),
                retry_after_max: Duration::from_secs(5),
                ..Patience::default()
            },
            ..HubSettings::read(|_| None)
        }
    }

    /// All that was asked so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let requests = self.0.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often a path that ends so was asked for by GET.
    pub(crate) fn gets(&self, end: &str) -> usize {
        let is_it = |r: &&Request| r.method == "GET" && r.path.ends_with(end);
        self.requests().iter().filter(is_it).count()
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream, at_hub: bool) {
        let Some(request) = read_request(&stream, at_hub) else {
            return;
        };
        let requests = self.requests.lock();
        requests
            .unwrap_or_else(PoisonError::into_inner)
            .push(request.clone());
        let reply = (self.fault)(&request).unwrap_or_else(|| self.reply(&request));
        // The client may have left.
        let _ = write_reply(stream, &request, &reply);
    }

    fn reply(&self, request: &Request) -> Reply {
        let api = format!("/api/models/{REPOSITORY}/revision/");
        let resolve = format!("/{REPOSITORY}/resolve/{COMMIT}/");
        if let Some(revision) = request.path.strip_prefix(&api) {
            let known = ["main", "refs%2Fpr%2F1", COMMIT];
            return match known.contains(&revision) {
                true => Reply::ok(listing(self.files.keys())),
                false => Reply::status(404).with("X-Error-Code", "RevisionNotFound"),
            };
        }
        if let Some(name) = request.path.strip_prefix(&resolve) {
            let Some(bytes) = self.files.get(name) else {
                return Reply::status(404).with("X-Error-Code", "EntryNotFound");
            };
            if !is_large(name) {
                let reply = Reply::ok(bytes.clone()).ranged(request);
                return reply.with("ETag", format!("\"{}\"", git_hash(bytes)));
            }
            return Reply::status(302)
                .with(
                    "Location",
                    format!("http://{}/{name}?signature=s3cret", self.store),
                )
                .with("X-Linked-Etag", format!("\"{}\"", sha256(bytes)))
                .with("X-Linked-Size", bytes.len().to_string());
        }
        let name = request.path.trim_start_matches('/').split('?').next();
        match name.and_then(|name| self.files.get(name)) {
            Some(bytes) if !request.at_hub => Reply::ok(bytes.clone()).ranged(request),
            _ => Reply::status(404).with("X-Error-Code", "RepoNotFound"),
        }
    }
}

pub(crate) fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".gguf")
}

/// The answer to which files there are.
pub(crate) fn listing<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Vec<u8> {
    let file = |name: S| serde_json::json!({"rfilename": name.as_ref()});
    let files: Vec<_> = names.into_iter().map(file).collect();
    let all = serde_json::json!({"id": REPOSITORY, "sha": COMMIT, "siblings": files});
    all.to_string().into_bytes()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

pub(crate) fn git_hash(bytes: &[u8]) -> String {
    let mut hash = sha1::Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hex(&hash.finalize())
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_request(stream: &TcpStream, at_hub: bool) -> Option<Request> {
    let mut lines = BufReader::new(stream).take(64 << 10).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let lines = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty());
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    });
    Some(Request {
        at_hub,
        method,
        path,
        headers: headers.collect(),
    })
}

fn write_reply(mut stream: TcpStream, request: &Request, reply: &Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    let announced = reply.length.unwrap_or(Some(reply.body.len() as u64));
    if let Some(length) = announced {
        let _ = write!(head, "Content-Length: {length}\r\n");
    }
    for (name, value) in &reply.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method != "HEAD" {
        let sent = reply.cut.unwrap_or(reply.body.len()).min(reply.body.len());
        let (first, rest) = reply.body[..sent].split_at(sent.min(1));
        stream.write_all(first)?;
        std::thread::sleep(reply.pause);
        stream.write_all(rest)?;
    }
    Ok(())
}
