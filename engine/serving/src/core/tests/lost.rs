//! A device that is lost, and one that is let go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::fake::{Fake, Trouble};
use super::*;

#[tokio::test]
async fn a_lost_device_ends_every_stream_and_the_engine() {
    for depth in [1, 2] {
        let fake = Fake::new(400, depth, |step| (step == 6).then_some(Trouble::Lost));
        let engine = engine(fake, 400);
        let mut streams = Vec::new();
        for i in 0..5 {
            let options = SamplingOptions {
                ignore_eos: true,
                ..Default::default()
            };
            let stream = engine.generate(request(&[i], options)).await;
            streams.extend(stream.ok());
        }
        assert!(!streams.is_empty());
        for stream in streams {
            let (_, _, error) = read(stream, 1).await;
            assert!(
                matches!(error, Some(RequestError::Internal(_))),
                "{error:?}"
            );
        }
        let died = tokio::time::timeout(Duration::from_secs(10), engine.died()).await;
        assert!(died.is_ok() && !engine.alive());
        let refused = engine
            .generate(request(&[1], SamplingOptions::default()))
            .await;
        assert!(matches!(refused.err(), Some(RequestError::Internal(_))));
        // Nobody is left to wait for.
        engine.drain(Duration::from_secs(60)).await;
    }
}

/// Takes its time to be dropped, and tells.
struct Slow(Arc<AtomicBool>);

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(200));
        self.0.store(true, Ordering::Release);
    }
}

/// An engine, and whether its backend is gone.
fn slow_to_go() -> (EngineHandle, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let slow = Slow(gone.clone());
    let fake = Fake::new(400, 1, move |_| {
        let _ = &slow;
        None
    });
    (engine(fake, 400), gone)
}

#[tokio::test]
async fn the_last_handle_waits_until_the_backend_is_gone() {
    let (engine, gone) = slow_to_go();
    let stream = engine
        .generate(request(&[1], SamplingOptions::default()))
        .await;
    let other = engine.clone();
    drop(engine);
    let (_, _, error) = read(stream.expect("accepted"), 1).await;
    assert!(error.is_none() && !gone.load(Ordering::Acquire));
    drop(other);
    assert!(gone.load(Ordering::Acquire));
}

#[tokio::test]
async fn closing_does_so_whoever_has_a_handle() {
    let (engine, gone) = slow_to_go();
    let other = engine.clone();
    engine.close();
    assert!(gone.load(Ordering::Acquire));
    let refused = other
        .generate(request(&[1], SamplingOptions::default()))
        .await;
    assert!(matches!(refused.err(), Some(RequestError::Internal(_))));
    engine.close();
}
