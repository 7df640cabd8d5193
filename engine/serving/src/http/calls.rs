//! Calls of a front end: each is counted once with its status, and a panic ends it alone. Each has
//! a name, which the answer tells in a header and the log at level debug.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;

use super::{Api, Problem, Shape};
use crate::front_end::{Engine, contained, new_name};
use crate::metrics::Recorder;

/// Status of a call whose client left before there was an answer; nginx's.
const CLIENT_LEFT: u16 = 499;
/// Where the clients of OpenAI and of Anthropic look for a call's name.
const NAME_HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
];

/// Counts its call when dropped.
struct Call {
    recorder: Option<Recorder>,
    route: String,
    name: String,
    status: u16,
}

impl Drop for Call {
    fn drop(&mut self) {
        let Self { route, name, .. } = &*self;
        let status = self.status;
        tracing::debug!(route, name, status, "call answered");
        if let Some(recorder) = &self.recorder {
            recorder.http(route, status);
        }
    }
}

struct Calls<E> {
    api: Api<E>,
    shape: Shape,
}

impl<E> Clone for Calls<E> {
    fn clone(&self) -> Self {
        Self {
            api: self.api.clone(),
            shape: self.shape,
        }
    }
}

/// Wraps the routes so far.
pub(crate) fn counted<E: Engine>(router: Router, api: &Api<E>, shape: Shape) -> Router {
    let calls = Calls {
        api: api.clone(),
        shape,
    };
    router.layer(from_fn_with_state(calls, count))
}

async fn count<E: Engine>(State(calls): State<Calls<E>>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let mut call = Call {
        recorder: calls.api.engine().ok().map(|e| e.recorder().clone()),
        // The route, never what a client wrote.
        route: path.map_or("other", MatchedPath::as_str).to_owned(),
        name: new_name("req_"),
        status: CLIENT_LEFT,
    };
    let response = contained(next.run(request)).await;
    let mut response = response.unwrap_or_else(|| (calls.shape)(&Problem::bug()));
    if let Ok(name) = HeaderValue::from_str(&call.name) {
        for header in NAME_HEADERS {
            response.headers_mut().insert(header, name.clone());
        }
    }
    call.status = response.status().as_u16();
    response
}
