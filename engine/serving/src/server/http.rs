//! The HTTP port: `/metrics` for Prometheus, `/healthz` (alive) and `/readyz` (takes requests) for
//! orchestrators.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use super::engine::{Engine, gauges};

type Shared<E> = State<Arc<OnceLock<E>>>;

/// The routes; `engine` is set when the model is loaded.
pub(super) fn router<E: Engine>(engine: Arc<OnceLock<E>>) -> Router {
    Router::new()
        .route("/metrics", get(metrics::<E>))
        .route("/healthz", get(healthz::<E>))
        .route("/readyz", get(readyz::<E>))
        .with_state(engine)
}

async fn metrics<E: Engine>(State(engine): Shared<E>) -> impl IntoResponse {
    let render = |engine: &E| engine.recorder().render(&gauges(&engine.state()));
    let text = engine.get().map(render).unwrap_or_default();
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
}

/// While the model is loading the process is well, too.
async fn healthz<E: Engine>(State(engine): Shared<E>) -> (StatusCode, &'static str) {
    if engine.get().is_none_or(Engine::alive) {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the engine stopped; restart the server\n",
        )
    }
}

async fn readyz<E: Engine>(State(engine): Shared<E>) -> (StatusCode, &'static str) {
    match engine.get() {
        Some(engine) if !engine.alive() => {
            (StatusCode::SERVICE_UNAVAILABLE, "the engine stopped\n")
        }
        Some(engine) if !engine.state().accepting => {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
        }
        Some(_) => (StatusCode::OK, "ready\n"),
        None => (StatusCode::SERVICE_UNAVAILABLE, "loading the model\n"),
    }
}
