//! API keys over gRPC.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tonic::{Code, Status};

use super::Engine;
use super::status::code_name;
use crate::access::{Access, Denied};
use crate::front_end::admit;

/// The service whose calls need a key. Health and reflection need none: they tell nothing of the
/// model and its clients.
const SERVICE: &str = "/ebb.v1.Ebb/";
/// Its methods that make the engine work: they count for their key. An abort must not wait for what
/// it would end.
const COUNTED: [&str; 3] = ["Generate", "Tokenize", "Detokenize"];
/// Its other methods.
const FREE: [&str; 3] = ["Abort", "GetModelInfo", "GetServerInfo"];

struct Keys<E> {
    access: Access,
    engine: Arc<OnceLock<E>>,
}

impl<E> Clone for Keys<E> {
    fn clone(&self) -> Self {
        Self {
            access: self.access.clone(),
            engine: self.engine.clone(),
        }
    }
}

/// The routes so far ask for a key, where the server has keys.
pub(super) fn required<E: Engine>(
    router: Router,
    access: &Access,
    engine: &Arc<OnceLock<E>>,
) -> Router {
    let keys = Keys {
        access: access.clone(),
        engine: engine.clone(),
    };
    router.layer(from_fn_with_state(keys, check::<E>))
}

async fn check<E: Engine>(State(keys): State<Keys<E>>, request: Request, next: Next) -> Response {
    let Some(method) = request.uri().path().strip_prefix(SERVICE) else {
        return next.run(request).await;
    };
    let counts = COUNTED.contains(&method);
    let admitted = admit(
        &keys.access,
        request.headers(),
        request.extensions(),
        counts,
    );
    let Err(denied) = admitted else {
        return next.run(request).await;
    };
    let status = status(&denied);
    if let Some(engine) = keys.engine.get() {
        // The method's name is ours, never what a client wrote.
        let known = COUNTED.iter().chain(&FREE).find(|&&known| known == method);
        let method = known.copied().unwrap_or("other");
        let code = code_name(status.code());
        tracing::debug!(method, code, "call denied");
        engine.recorder().rpc(method, code);
    }
    status.into_http::<Body>()
}

/// The status that tells of a denied call, with `retry-after` in seconds where waiting helps.
fn status(denied: &Denied) -> Status {
    let code = match denied {
        Denied::NoKey | Denied::WrongKey => Code::Unauthenticated,
        Denied::Concurrency { .. } | Denied::Requests { .. } | Denied::Tokens { .. } => {
            Code::ResourceExhausted
        }
    };
    let mut status = Status::new(code, denied.to_string());
    if let Some(seconds) = denied.retry_after() {
        status.metadata_mut().insert("retry-after", seconds.into());
    }
    status
}
