//! A call's key: `authorization: Bearer KEY`, as OpenAI's clients send it, or `x-api-key: KEY`, as
//! Anthropic's do; headers over HTTP, metadata over gRPC.

use std::time::Instant;

use axum::http::{Extensions, HeaderMap, header};

use super::CallMemory;
use crate::access::{Access, Denied};

/// Looks up the call's key. One that `counts` counts for it until its account, which the
/// extensions have, ends.
///
/// # Errors
/// [`Denied`]
pub(crate) fn admit(
    access: &Access,
    headers: &HeaderMap,
    extensions: &Extensions,
    counts: bool,
) -> Result<(), Denied> {
    let Some(key) = access.key(presented(headers))? else {
        return Ok(());
    };
    tracing::debug!(key = key.name(), "call with a key");
    if counts && let Some(account) = extensions.get::<CallMemory>() {
        account.count_for(key.begin(Instant::now())?);
    }
    Ok(())
}

/// What a call brings as keys.
fn presented(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    bearer.into_iter().chain(text("x-api-key").map(str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_either_header() {
        let presented = |headers: &[(&'static str, &'static str)]| -> Vec<String> {
            let headers = headers.iter().map(|&(name, value)| {
                let name = header::HeaderName::from_static(name);
                (name, header::HeaderValue::from_static(value))
            });
            let map: HeaderMap = headers.collect();
            presented(&map).map(str::to_owned).collect()
        };
        assert_eq!(presented(&[("authorization", "Bearer a")]), ["a"]);
        assert_eq!(presented(&[("authorization", "bearer  a ")]), ["a"]);
        assert_eq!(presented(&[("x-api-key", "b")]), ["b"]);
        let both = [("authorization", "Bearer a"), ("x-api-key", "b")];
        assert_eq!(presented(&both), ["a", "b"]);
        for other in ["Basic a", "Bearer", "a", "", "Bearera b"] {
            assert!(presented(&[("authorization", other)]).is_empty(), "{other}");
        }
    }
}
