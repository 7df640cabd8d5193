//! `grpc.health.v1`: SERVING only while the engine takes requests and makes steps.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::front_end::Engine;

/// Names whose health can be asked: the service, and the server as a whole, which is set last: who
/// hears of the server finds the service in the same state.
const NAMES: [&str; 2] = ["ebb.v1.Ebb", ""];
/// How often the engine is looked at.
const PERIOD: Duration = Duration::from_millis(200);

/// The server's health as clients see it. Clones share it.
#[derive(Clone)]
pub(super) struct Health {
    reporter: HealthReporter,
    serving: Arc<Mutex<Option<bool>>>,
}

impl Health {
    /// Not serving, to begin with.
    pub(super) async fn new(reporter: HealthReporter) -> Self {
        let health = Self {
            reporter,
            serving: Arc::default(),
        };
        health.set(false).await;
        health
    }

    /// Tells every name's watchers, if it is news.
    pub(super) async fn set(&self, serving: bool) {
        let mut was = self.serving.lock().await;
        if was.replace(serving) != Some(serving) {
            let status = if serving {
                ServingStatus::Serving
            } else {
                ServingStatus::NotServing
            };
            for name in NAMES {
                self.reporter.set_service_status(name, status).await;
            }
        }
    }

    /// Forgets every name, which ends the calls that watch them.
    pub(super) async fn end(mut self) {
        for name in NAMES {
            self.reporter.clear_service_status(name).await;
        }
    }

    /// Follows the engine for as long as it is polled, and sorts its metrics' samples on the way.
    pub(super) async fn follow<E: Engine>(self, engine: Arc<OnceLock<E>>) {
        let (mut was_alive, mut was_hung) = (true, false);
        let mut ticks = tokio::time::interval(PERIOD);
        loop {
            ticks.tick().await;
            let Some(engine) = engine.get() else { continue };
            let alive = engine.alive();
            let hung = engine.is_hung();
            self.set(alive && !hung && engine.state().accepting).await;
            if was_alive && !alive {
                tracing::error!("the engine stopped after an error; restart the server");
            }
            if hung != was_hung && alive {
                let seconds = engine.state().step_age.as_secs();
                match hung {
                    true => tracing::error!(
                        "requests wait, and no step has come back for {seconds} s \
                         (--hang-timeout); restart the server if this lasts"
                    ),
                    false => tracing::warn!("steps come back again"),
                }
            }
            (was_alive, was_hung) = (alive, hung);
            engine.recorder().upkeep();
        }
    }
}
