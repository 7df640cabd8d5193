//! `/metrics` for Prometheus, `/livez` (alive; also `/healthz`) and `/readyz` (takes requests; also
//! `/health` and `/ping`) for orchestrators. No answer waits for the engine.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::front_end::{Engine, gauges};
use crate::metrics::ClientGauges;

/// What a probe hears while requests wait and no step comes back.
const HUNG: &str = "requests wait, and no step comes back (--hang-timeout)\n";

type Shared<E> = State<Served<E>>;

/// What clients hold at the moment.
pub(crate) type Clients = Arc<dyn Fn() -> ClientGauges + Send + Sync>;

/// What the routes look at.
pub(crate) struct Served<E> {
    engine: Arc<OnceLock<E>>,
    clients: Clients,
}

impl<E> Clone for Served<E> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            clients: self.clients.clone(),
        }
    }
}

/// The routes; `engine` is set when the model is loaded.
pub(crate) fn router<E: Engine>(engine: Arc<OnceLock<E>>, clients: Clients) -> Router {
    Router::new()
        .route("/metrics", get(metrics::<E>))
        .route("/healthz", get(livez::<E>))
        .route("/livez", get(livez::<E>))
        .route("/readyz", get(readyz::<E>))
        .route("/health", get(readyz::<E>))
        .route("/ping", get(readyz::<E>).post(readyz::<E>))
        .with_state(Served { engine, clients })
}

async fn metrics<E: Engine>(State(served): Shared<E>) -> impl IntoResponse {
    let clients = (served.clients)();
    let render = |engine: &E| {
        let now = gauges(&engine.state(), clients);
        engine.recorder().render(&now)
    };
    let text = served.engine.get().map(render).unwrap_or_default();
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
}

/// While the model is loading the process is well, too.
async fn livez<E: Engine>(State(served): Shared<E>) -> (StatusCode, &'static str) {
    match served.engine.get() {
        Some(engine) if !engine.alive() => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the engine stopped; restart the server\n",
        ),
        Some(engine) if engine.is_hung() => (StatusCode::SERVICE_UNAVAILABLE, HUNG),
        _ => (StatusCode::OK, "ok\n"),
    }
}

async fn readyz<E: Engine>(State(served): Shared<E>) -> (StatusCode, &'static str) {
    match served.engine.get() {
        Some(engine) if !engine.alive() => {
            (StatusCode::SERVICE_UNAVAILABLE, "the engine stopped\n")
        }
        Some(engine) if engine.is_hung() => (StatusCode::SERVICE_UNAVAILABLE, HUNG),
        Some(engine) if !engine.state().accepting => {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
        }
        Some(_) => (StatusCode::OK, "ready\n"),
        None => (StatusCode::SERVICE_UNAVAILABLE, "loading the model\n"),
    }
}
