//! Calls of a front end: each is counted once with its status, and a panic ends it alone.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;

use super::{Api, Problem, Shape};
use crate::front_end::{Engine, contained};
use crate::metrics::Recorder;

/// Status of a call whose client left before there was an answer; nginx's.
const CLIENT_LEFT: u16 = 499;

/// Counts its call when dropped.
struct Call {
    recorder: Option<Recorder>,
    route: String,
    status: u16,
}

impl Drop for Call {
    fn drop(&mut self) {
        let (route, status) = (&self.route, self.status);
        tracing::debug!(route, status, "call answered");
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
        status: CLIENT_LEFT,
    };
    let response = contained(next.run(request)).await;
    let response = response.unwrap_or_else(|| (calls.shape)(&Problem::bug()));
    call.status = response.status().as_u16();
    response
}
