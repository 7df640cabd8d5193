//! A device that is lost.

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
