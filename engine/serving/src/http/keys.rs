//! API keys over HTTP.

use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;

use super::{Problem, Shape, json};
use crate::access::Access;
use crate::front_end::admit;

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
    // What makes the engine work is posted.
    let counts = request.method() == Method::POST;
    match admit(
        &keys.access,
        request.headers(),
        request.extensions(),
        counts,
    ) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let discard = json::discard(request, keys.max_body_bytes);
            let _ = tokio::time::timeout(DISCARD_TIME, discard).await;
            (keys.shape)(&Problem::denied(&denied))
        }
    }
}
