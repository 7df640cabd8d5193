//! What the page is made of, and what its view of the pool tells, from a scripted engine.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode, header};
use serde_json::Value;
use tonic::codegen::Service as _;

use super::*;
use crate::front_end::fake::Fake;

async fn get(engine: OnceLock<Fake>, path: &str) -> (StatusCode, HeaderMap, String) {
    let mut router = router(&Api::new(Arc::new(engine), 1000));
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router.call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    (
        head.status,
        head.headers,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

fn served() -> OnceLock<Fake> {
    OnceLock::from(Fake::new())
}

#[tokio::test]
async fn every_path_is_answered_with_and_without_a_model() {
    for path in OPEN_PATHS {
        let (status, headers, text) = get(served(), path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        let kind = headers[header::CONTENT_TYPE].to_str().unwrap();
        let expected = match path.rsplit_once('.').map(|(_, ending)| ending) {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ if path == "/" => "text/html; charset=utf-8",
            _ => "application/json",
        };
        assert_eq!(kind, expected, "{path}");
        assert!(!text.is_empty(), "{path}");
        if path != "/kv_pool" {
            assert_eq!(get(OnceLock::new(), path).await.0, StatusCode::OK, "{path}");
        }
    }
    let (status, _, text) = get(OnceLock::new(), "/kv_pool").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("model_loading"), "{text}");
    assert_eq!(
        get(served(), "/page/other.js").await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_browser_may_fetch_from_this_server_alone() {
    for path in OPEN_PATHS.into_iter().filter(|path| *path != "/kv_pool") {
        let (_, headers, text) = get(served(), path).await;
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'));
        assert!(policy.contains("frame-ancestors 'none'"));
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        // The name space of SVG is no address.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("://"), "{path} names another server");
        // What the policy does not allow would fail in silence.
        assert!(
            !text.contains(" style=") && !text.contains(" onclick="),
            "{path}"
        );
    }
}

/// What a text names between `before` and the next quotation mark.
fn named<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let after = text.split(before).skip(1);
    after.filter_map(|rest| rest.split('"').next()).collect()
}

#[tokio::test]
async fn the_page_names_every_file_and_no_other() {
    let mut files = BTreeSet::new();
    let mut left = vec!["/".to_owned()];
    while let Some(path) = left.pop() {
        let (status, _, text) = get(served(), &path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        if !files.insert(path) {
            continue;
        }
        let html = [" src=\"", " href=\"/"].map(|before| named(&text, before));
        let links = html.concat().into_iter();
        left.extend(links.map(|link| format!("/{}", link.trim_start_matches('/'))));
        let modules = named(&text, " from \"./").into_iter();
        left.extend(modules.map(|module| format!("/page/{module}")));
    }
    let all = OPEN_PATHS.into_iter().filter(|path| *path != "/kv_pool");
    assert_eq!(files, all.map(str::to_owned).collect());
}

#[tokio::test]
async fn a_look_tells_the_fields_of_the_document() {
    let (_, headers, text) = get(served(), "/kv_pool").await;
    assert_eq!(headers[header::CACHE_CONTROL], "no-store");
    let look: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&look["model"], &look["accepting"]),
        (&"fake".into(), &true.into())
    );
    let document: Value =
        serde_json::from_str(include_str!("../openai/openapi.json")).expect("JSON");
    let schema = &document["components"]["schemas"]["KvPool"];
    let told = schema["properties"].as_object().expect("a schema").keys();
    let found = look.as_object().expect("an object").keys();
    assert_eq!(
        found.collect::<BTreeSet<_>>(),
        told.collect::<BTreeSet<_>>()
    );
}
