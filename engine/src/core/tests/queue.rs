//! A full queue.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::fake::Fake;
use super::*;

fn answer(tokens: u32) -> GenerateRequest {
    let options = SamplingOptions {
        ignore_eos: true,
        max_tokens: Some(tokens),
        ..Default::default()
    };
    request(&[1], options)
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_the_step_that_runs() {
    for depth in [0, 1, 2] {
        let (began, begin) = channel();
        let (go_on, wait) = channel::<()>();
        // Steps do not end before the test says so; later ones find the sender gone and go on.
        let fake = Fake::new(400, depth, move |_| {
            let _ = began.send(());
            let _ = wait.recv();
            None
        });
        let engine = queueing(fake, 400, 2);
        let mut streams = vec![engine.generate(answer(5)).await.expect("taken")];
        begin
            .recv_timeout(Duration::from_secs(10))
            .expect("the first step begins");
        for _ in 0..2 {
            streams.push(engine.generate(answer(5)).await.expect("room in the queue"));
        }
        for _ in 0..3 {
            let refused = tokio::time::timeout(Duration::from_secs(10), engine.generate(answer(5)));
            let refused = refused.await.expect("told while the step runs");
            assert!(matches!(
                refused.err(),
                Some(RequestError::QueueFull { .. })
            ));
        }
        drop(go_on);
        for stream in streams {
            let (answers, _, error) = read(stream, 1).await;
            assert_eq!((answers[0].tokens.len(), error), (5, None));
        }
        // Whoever was refused has left nothing behind, and there is room again.
        for _ in 0..4 {
            let stream = engine.generate(answer(2)).await.expect("room in the queue");
            assert_eq!(read(stream, 1).await.2, None);
        }
    }
}
