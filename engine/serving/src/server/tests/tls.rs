//! TLS and certificates of clients, on every port.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::{Certificate, ClientTlsConfig};

use super::certificates::{Authority, Identity, client, get, open};
use super::{MetricsTls, *};
use crate::server::{BindError, TlsFiles};

/// Files of a server, in a folder of their own.
pub(super) fn files(folder: &tempfile::TempDir, ca: Option<&Authority>) -> TlsFiles {
    let path = |name| folder.path().join(name);
    if let Some(ca) = ca {
        std::fs::write(path("ca.crt"), ca.pem()).unwrap();
    }
    TlsFiles {
        cert: path("tls.crt"),
        key: path("tls.key"),
        client_ca: ca.map(|_| path("ca.crt")),
    }
}

pub(super) async fn start_with(config: ServerConfig) -> (Fake, Server<Fake>) {
    let server = Server::bind(&config).await.expect("free ports");
    let fake = Fake::new();
    server.ready(fake.clone()).await;
    (fake, server)
}

/// A server of this identity, whose clients need certificates of `ca`.
async fn secured(
    identity: &Identity,
    ca: Option<&Authority>,
    metrics_tls: MetricsTls,
    times: Times,
) -> (tempfile::TempDir, Server<Fake>) {
    let folder = tempfile::tempdir().unwrap();
    identity.write(folder.path());
    let config = ServerConfig {
        tls: Some(files(&folder, ca)),
        metrics_tls,
        times,
        ..loopback()
    };
    let (_fake, server) = start_with(config).await;
    (folder, server)
}

pub(super) fn ports(server: &Server<Fake>) -> [SocketAddr; 3] {
    [
        server.grpc_address(),
        server.api_address().unwrap(),
        server.http_address().unwrap(),
    ]
}

#[tokio::test]
async fn every_port_speaks_tls_and_its_protocol() {
    let authority = Authority::new("ours");
    let identity = authority.issue();
    let (_folder, server) = secured(&identity, None, MetricsTls::Server, Times::default()).await;
    let [grpc, api, http] = ports(&server);
    let http1 = client(&authority, None, b"http/1.1");
    for address in [api, http] {
        let text = get(&http1, address, "/readyz").await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    }
    let stranger = client(&Authority::new("theirs"), None, b"http/1.1");
    assert!(get(&stranger, api, "/readyz").await.is_err());
    // A protocol that a port does not speak is refused in the handshake.
    assert!(open(&http1, grpc).await.is_err());
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.pem()))
        .domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{grpc}")).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect_lazy();
    let (events, status) = collect(&channel, text("count")).await;
    assert!(status.is_none() && events.len() > 2, "{status:?}");
}

#[tokio::test]
async fn plain_text_is_told_of_tls() {
    let authority = Authority::new("ours");
    let (_folder, server) = secured(
        &authority.issue(),
        None,
        MetricsTls::Server,
        Times::default(),
    )
    .await;
    let [grpc, api, http] = ports(&server);
    for address in [api, http] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket
            .write_all(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).await.unwrap();
        assert!(
            text.starts_with("HTTP/1.1 400") && text.contains("https://"),
            "{text}"
        );
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "tls_expected");
    }
    let mut socket = TcpStream::connect(grpc).await.unwrap();
    socket
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await.unwrap();
    assert!(
        String::from_utf8_lossy(&bytes).contains("https://"),
        "{bytes:?}"
    );
}

#[tokio::test]
async fn clients_without_a_sound_certificate_are_refused() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let clients = Authority::new("clients");
    for (metrics, probes_need_one) in [(MetricsTls::Server, false), (MetricsTls::Mutual, true)] {
        let (_folder, server) =
            secured(&ours.issue(), Some(&clients), metrics, Times::default()).await;
        let [_, api, http] = ports(&server);
        let answered = async |identity: Option<&Identity>, address| {
            let text = get(&client(&ours, identity, b"http/1.1"), address, "/readyz").await;
            text.is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
        };
        assert!(answered(Some(&clients.issue()), api).await);
        assert!(answered(Some(&clients.issue()), http).await);
        assert_eq!(answered(None, http).await, !probes_need_one);
        for identity in [
            None,
            Some(theirs.issue()),
            Some(ours.issue()),
            Some(clients.issue_for(2020, 2021)),
            Some(clients.issue_for(3000, 3001)),
        ] {
            assert!(!answered(identity.as_ref(), api).await);
            assert_eq!(answered(identity.as_ref(), http).await, !probes_need_one);
            let channel = client(&ours, identity.as_ref(), b"h2");
            let stream = open(&channel, server.grpc_address()).await;
            let refused = match stream {
                // In TLS 1.3 a client learns it with the first bytes that it reads.
                Ok(mut stream) => {
                    let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
                    stream.read(&mut [0; 64]).await.is_err()
                }
                Err(_) => true,
            };
            assert!(refused);
        }
    }
}

#[tokio::test]
async fn a_plain_metrics_port_stays_plain() {
    let authority = Authority::new("ours");
    let (_folder, server) = secured(
        &authority.issue(),
        Some(&authority),
        MetricsTls::Off,
        Times::default(),
    )
    .await;
    assert!(
        super::get(&server, "/readyz")
            .await
            .starts_with("HTTP/1.1 200")
    );
}

#[tokio::test]
async fn a_handshake_has_its_time() {
    let times = Times {
        handshake: Duration::from_millis(300),
        ..Times::default()
    };
    let authority = Authority::new("ours");
    let (_folder, server) = secured(&authority.issue(), None, MetricsTls::Off, times).await;
    // Nothing; the first byte of a record; a record that promises more than comes.
    for sent in [&b""[..], &[22], &[22, 3, 1, 2, 0, 1, 0]] {
        for address in &ports(&server)[..2] {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(sent).await.unwrap();
            let began = Instant::now();
            let _ = socket.read(&mut [0; 64]).await;
            let took = began.elapsed();
            assert!(took > Duration::from_millis(200) && took < Duration::from_secs(2));
        }
    }
    // TLS takes none of the time of HTTP/2's handshake.
    let stream = open(&client(&authority, None, b"h2"), server.grpc_address()).await;
    let began = Instant::now();
    let _ = stream.unwrap().read_to_end(&mut Vec::new()).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    let mut socket = TcpStream::connect(server.api_address().unwrap())
        .await
        .unwrap();
    socket
        .write_all(&[22, 3, 1, 0, 5, 9, 9, 9, 9, 9])
        .await
        .unwrap();
    let _ = socket.read_to_end(&mut Vec::new()).await;
    let text = super::get(&server, "/metrics").await;
    let count = |port: &str, reason: &str| {
        let labels = format!("port=\"{port}\",reason=\"{reason}\"}} ");
        let line = text
            .lines()
            .find(|line| line.contains(&labels))
            .expect("a sample");
        line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(
        (count("grpc", "no_handshake"), count("api", "no_handshake")),
        (4, 3)
    );
    assert_eq!((count("grpc", "tls"), count("api", "tls")), (0, 1));
}

#[tokio::test]
async fn silent_clients_make_way_in_the_handshake_too() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.issue().write(folder.path());
    let config = ServerConfig {
        tls: Some(files(&folder, None)),
        connections: ConnectionLimits {
            max: 3,
            per_peer: Some(0),
        },
        ..loopback()
    };
    let (_fake, server) = start_with(config).await;
    let address = server.api_address().unwrap();
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let ours = client(&authority, None, b"http/1.1");
    let text = get(&ours, address, "/readyz").await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[tokio::test]
async fn files_that_cannot_be_used_end_the_start_with_a_sentence() {
    let (ours, folder) = (Authority::new("ours"), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
    let try_bind = async || {
        let config = ServerConfig {
            tls: Some(files(&folder, Some(&ours))),
            ..loopback()
        };
        match Server::<Fake>::bind(&config).await {
            Err(BindError::Tls(error)) => error.to_string(),
            Err(other) => panic!("{other}"),
            Ok(_) => String::new(),
        }
    };
    let (good, other) = (ours.issue(), ours.issue());
    assert!(try_bind().await.starts_with("cannot read --tls-cert"));
    good.write(folder.path());
    assert_eq!(try_bind().await, "");
    write("tls.key", &other.key);
    assert!(try_bind().await.contains("cannot be used together"));
    for text in ["", "HUSH", &good.cert, "-----BEGIN PRIVATE KEY-----\nHUSH"] {
        write("tls.key", text);
        let error = try_bind().await;
        assert!(
            error.starts_with("--tls-key") && !error.contains("HUSH"),
            "{error}"
        );
    }
    good.write(folder.path());
    for text in ["", "HUSH", &good.key, "-----BEGIN CERTIFICATE-----\nHUSH"] {
        write("tls.crt", text);
        let error = try_bind().await;
        assert!(
            error.starts_with("--tls-cert") && !error.contains("HUSH"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_given_up_over_tls_too() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.issue().write(folder.path());
    let config = ServerConfig {
        tls: Some(files(&folder, None)),
        times: Times {
            unread: Duration::from_millis(300),
            ..Times::default()
        },
        ..loopback()
    };
    let (fake, server) = start_with(config).await;
    let ours = client(&authority, None, b"http/1.1");
    let mut stream = open(&ours, server.api_address().unwrap()).await.unwrap();
    let request = http_api::completion(r#"{"prompt": "flood", "stream": true}"#);
    stream.write_all(request.as_bytes()).await.unwrap();
    let live = || fake.0.live.load(Ordering::Relaxed);
    eventually("the request begins", || live() == 1).await;
    eventually("the request ends", || live() == 0).await;
    // What TLS, the kernel and HTTP hold for it is little beside what an answer may have.
    let mut part = vec![0; 64 * 1024];
    let mut held = 0;
    while let Ok(n @ 1..) = stream.read(&mut part).await {
        held += n;
    }
    assert!(held < 16 << 20, "{held}");
}
