//! Which web pages may call: cross-origin resource sharing (CORS).

use std::str::FromStr;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use thiserror::Error;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// How long a browser may remember what it was allowed.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Headers of an answer that a page's program may read.
const READABLE: [HeaderName; 3] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
    header::RETRY_AFTER,
];

/// The origins whose pages may call the HTTP API; by default none but the server's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AllowedOrigins {
    /// None: browsers keep other pages out.
    #[default]
    None,
    /// Every page.
    Any,
    /// These, each `scheme://host[:port]`.
    These(Vec<HeaderValue>),
}

/// A list of origins that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "--allowed-origins: {0:?} is not an origin such as https://chat.example.com; give origins \
     separated by commas, or * for every page"
)]
pub struct OriginError(String);

impl FromStr for AllowedOrigins {
    type Err = OriginError;

    /// Reads `*`, origins between commas, or a JSON list of either, which is how vLLM takes them.
    fn from_str(text: &str) -> Result<Self, OriginError> {
        let wrong = || OriginError(text.to_owned());
        let list: Vec<String> = if text.trim_start().starts_with('[') {
            serde_json::from_str(text).map_err(|_| wrong())?
        } else {
            text.split(',').map(|part| part.trim().to_owned()).collect()
        };
        if list.iter().any(|origin| origin == "*") {
            return Ok(Self::Any);
        }
        if list.is_empty() {
            return Ok(Self::None);
        }
        let origins: Result<_, _> = list.iter().map(|one| origin(one)).collect();
        Ok(Self::These(origins?))
    }
}

/// An origin as browsers send it: no path, no slash at the end.
fn origin(text: &str) -> Result<HeaderValue, OriginError> {
    let wrong = || OriginError(text.to_owned());
    let (scheme, host) = text.split_once("://").ok_or_else(wrong)?;
    let known = ["http", "https", "chrome-extension", "moz-extension"];
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-:[]".contains(c);
    if !known.contains(&scheme) || host.is_empty() || !host.chars().all(plain) {
        return Err(wrong());
    }
    HeaderValue::from_str(text).map_err(|_| wrong())
}

/// Answers browsers that ask whether a page may call, and tells them so on every answer.
pub(crate) fn allowed(router: Router, origins: &AllowedOrigins) -> Router {
    let origin = match origins {
        AllowedOrigins::None => return router,
        AllowedOrigins::Any => AllowOrigin::any(),
        AllowedOrigins::These(list) => AllowOrigin::list(list.iter().cloned()),
    };
    // Not with credentials: a page sends its key by itself, and no cookie means anything here.
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(READABLE)
        .max_age(REMEMBERED);
    router.layer(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_people_and_vllm_write_them() {
        let read = |text: &str| text.parse::<AllowedOrigins>();
        let these = |list: &[&'static str]| {
            let list = list.iter().map(|one| HeaderValue::from_static(one));
            Ok(AllowedOrigins::These(list.collect()))
        };
        assert_eq!(read("*"), Ok(AllowedOrigins::Any));
        assert_eq!(read(r#"["*"]"#), Ok(AllowedOrigins::Any));
        assert_eq!(read("[]"), Ok(AllowedOrigins::None));
        let one = "https://chat.example.com";
        assert_eq!(read(one), these(&[one]));
        let two = ["http://localhost:3000", "http://[::1]:80"];
        assert_eq!(read("http://localhost:3000, http://[::1]:80"), these(&two));
        assert_eq!(read(r#"["http://localhost:3000"]"#), these(&two[..1]));
        for wrong in [
            "",
            "example.com",
            "https://",
            "https://example.com/",
            "https://a b",
            "ftp://example.com",
            "https://Example.com",
            "[1]",
            "[",
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.starts_with("--allowed-origins"), "{error}");
        }
    }
}
