//! Serving, from readiness to the end.

use std::time::Duration;

use thiserror::Error;

use super::{Server, Signals};
use crate::core::EngineHandle;

/// The engine thread ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the engine stopped (see the log above); every running request was ended. Start `ebb serve` \
     anew"
)]
pub struct EngineStopped;

/// How long clients may take to read how their calls ended when the engine has stopped by itself.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serves until a signal comes and what runs is finished. A second signal ends the process at once.
///
/// # Errors
/// When the engine stops by itself: only a new process can serve then.
pub async fn serve_until_stopped(
    server: Server<EngineHandle>,
    engine: &EngineHandle,
    signals: &mut Signals,
    grace: Duration,
) -> Result<(), EngineStopped> {
    let grace = tokio::select! {
        (signal, _) = signals.next() => {
            tracing::info!(
                signal,
                "finishing what runs, for at most {} s; a second signal ends at once",
                grace.as_secs()
            );
            grace
        }
        () = engine.died() => LAST_WORDS.min(grace),
    };
    tokio::select! {
        () = server.shut_down(grace) => {}
        (signal, code) = signals.next() => {
            tracing::warn!(signal, "ended at once");
            std::process::exit(code);
        }
    }
    if engine.alive() {
        Ok(())
    } else {
        Err(EngineStopped)
    }
}

#[cfg(test)]
mod tests {
    use ebb_proto::v1;

    use super::super::{AllowedOrigins, ConnectionLimits, MetricsTls, ServerConfig, Times};
    use super::*;
    use crate::access::Access;
    use crate::client_memory::ClientMemory;

    #[tokio::test]
    async fn an_engine_that_stops_by_itself_ends_the_server_with_an_error() {
        let local = "127.0.0.1:0".parse().expect("an address");
        let config = ServerConfig {
            grpc: local,
            api: None,
            page: false,
            http: None,
            limits: v1::ServerLimits::default(),
            connections: ConnectionLimits::default(),
            times: Times::default(),
            client_memory: ClientMemory::unlimited(),
            access: Access::open(),
            allowed_origins: AllowedOrigins::None,
            tls: None,
            metrics_tls: MetricsTls::Off,
        };
        let server = Server::<EngineHandle>::bind(&config).await.expect("a port");
        let engine = crate::core::tests::lost_at_once();
        server.ready(engine.clone()).await;
        let mut signals = Signals::new().expect("signals");
        let request = crate::core::tests::request(&[1], Default::default());
        let stream = engine.generate(request).await;
        let ended = serve_until_stopped(server, &engine, &mut signals, Duration::from_secs(20));
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
        assert!(matches!(ended, Ok(Err(EngineStopped))));
        let mut stream = stream.expect("taken");
        assert!(matches!(stream.next().await, Some(Err(_))));
    }
}
