//! Certificates and keys that change while clients are served.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::certificates::{Authority, client, get, open};
use super::tls::{files, start_with};
use super::*;
use crate::access::KeyLimits;

/// Polls until `holds` does; fails after ten seconds.
async fn soon(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..100 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within ten seconds: {what}");
}

#[tokio::test]
async fn a_new_certificate_is_presented_and_nothing_is_lost() {
    let ours = Authority::new("ours");
    let (old_clients, new_clients) = (Authority::new("old"), Authority::new("new"));
    let (first, second) = (ours.issue(), ours.issue());
    let folder = tempfile::tempdir().unwrap();
    first.write(folder.path());
    let config = ServerConfig {
        tls: Some(files(&folder, Some(&old_clients))),
        ..loopback()
    };
    let (_fake, server) = start_with(config).await;
    let address = server.api_address().unwrap();
    let old = client(&ours, Some(&old_clients.issue()), b"http/1.1");
    let new = client(&ours, Some(&new_clients.issue()), b"http/1.1");
    let presented = async |client| {
        let stream = open(client, address).await.ok()?;
        let certificates = stream.get_ref().1.peer_certificates()?;
        certificates.first().map(|one| one.clone().into_owned())
    };
    assert_eq!(presented(&old).await, Some(first.der()));

    // A connection that stays, with an answer under way.
    let mut staying = open(&old, address).await.unwrap();
    let body = r#"{"prompt": "slowly", "stream": true}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    staying.write_all(request.as_bytes()).await.unwrap();

    // A half-written pair changes nothing.
    std::fs::write(folder.path().join("tls.crt"), &second.cert).unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(presented(&old).await, Some(first.der()));
    second.write(folder.path());
    std::fs::write(folder.path().join("ca.crt"), new_clients.pem()).unwrap();
    soon("the new certificate", async || {
        presented(&new).await == Some(second.der())
    })
    .await;
    soon("the new authority", async || {
        get(&new, address, "/readyz").await.is_ok()
    })
    .await;
    assert!(get(&old, address, "/readyz").await.is_err());

    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains("[DONE]") {
        let mut part = [0; 4096];
        let n = staying.read(&mut part).await.unwrap();
        assert!(n > 0, "the connection was lost");
        answer.extend_from_slice(&part[..n]);
    }
    // The connection is as good as before.
    let request = "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    staying.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    staying.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("HTTP/1.1 200"), "{text}");
}

#[tokio::test]
async fn new_keys_are_taken_over_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "first\n").unwrap();
    let access = Access::new(&[], Some(path.clone()), KeyLimits::default()).unwrap();
    let config = ServerConfig {
        access: access.clone(),
        ..loopback()
    };
    let (_fake, _server) = start_with(config).await;
    let known = |key| access.key([key].into_iter()).is_ok();
    assert!(known("first") && !known("second"));
    for broken in ["", "second nonsense\n"] {
        std::fs::write(&path, broken).unwrap();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert!(known("first") && !known("second"));
    }
    std::fs::write(&path, "second\n").unwrap();
    soon("the new key", async || known("second")).await;
    assert!(!known("first"));
}
