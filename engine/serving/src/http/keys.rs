//! API keys over HTTP: `Authorization: Bearer KEY`, as OpenAI's clients send it, or `x-api-key:
//! KEY`, as Anthropic's do.

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;

use super::{Problem, Shape, json};
use crate::access::{Access, Denied};
use crate::front_end::CallMemory;

/// Routes of the front ends that need no key. They tell nothing of the model and its clients.
/// Probes and `/metrics` ([`super::probes`]) and a page's own routes need none either: they are not
/// wrapped in [`required`].
const OPEN_ROUTES: [&str; 2] = ["/version", "/openapi.json"];

/// The body of a refused call is read for so long: strangers are not to keep connections busy.
const DISCARD_TIME: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Keys {
    access: Access,
    shape: Shape,
    max_body_bytes: usize,
}

/// The routes so far ask for a key, where the server has keys.
pub(crate) fn required(
    router: Router,
    access: &Access,
    shape: Shape,
    max_body_bytes: usize,
) -> Router {
    let keys = Keys {
        access: access.clone(),
        shape,
        max_body_bytes,
    };
    router.layer(from_fn_with_state(keys, check))
}

async fn check(State(keys): State<Keys>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    if route.is_some_and(|route| OPEN_ROUTES.contains(&route.as_str())) {
        return next.run(request).await;
    }
    match admit(&keys.access, &request) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let discard = json::discard(request, keys.max_body_bytes);
            let _ = tokio::time::timeout(DISCARD_TIME, discard).await;
            (keys.shape)(&Problem::denied(&denied))
        }
    }
}

/// Looks up the call's key. What makes the engine work counts for it.
fn admit(access: &Access, request: &Request) -> Result<(), Denied> {
    let Some(key) = access.key(presented(request.headers()))? else {
        return Ok(());
    };
    tracing::debug!(key = key.name(), "call with a key");
    if request.method() == Method::POST
        && let Some(account) = request.extensions().get::<CallMemory>()
    {
        account.count_for(key.begin(Instant::now())?);
    }
    Ok(())
}

/// What a call brings as keys.
pub(crate) fn presented(headers: &HeaderMap) -> impl Iterator<Item = &str> {
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
