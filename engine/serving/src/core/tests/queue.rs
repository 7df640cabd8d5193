//! A full queue.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::fake::Fake;
use super::*;

fn answer(tokens: u32) -> Request {
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
        let engine = queueing(fake, 400, (1, 2));
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

/// Places and queue of the bursts below.
const RUNNING: usize = 8;
const WAITING: usize = 2;

#[tokio::test]
async fn an_idle_engine_takes_a_burst_that_its_places_and_its_queue_hold() {
    for depth in [0, 1, 2] {
        let engine = queueing(Fake::new(400, depth, |_| None), 400, (RUNNING, WAITING));
        for round in 0..20 {
            // All at once: what comes while the first step runs, and what comes before it, is
            // refused alike.
            let burst = (0..RUNNING + WAITING).map(|_| engine.generate(answer(3)));
            let mut streams = Vec::new();
            for request in burst {
                streams.push(
                    request
                        .await
                        .unwrap_or_else(|e| panic!("round {round}: {e}")),
                );
            }
            for stream in streams {
                assert_eq!(read(stream, 1).await.2, None);
            }
        }
    }
}

#[tokio::test]
async fn whoever_has_seen_an_end_finds_the_place_free() {
    for depth in [0, 1, 2] {
        // Nobody else waits: each client's next request needs the very place that its last one had,
        // or the one in the queue.
        let engine = queueing(Fake::new(400, depth, |_| None), 400, (RUNNING, 1));
        clients_in_turn(engine, RUNNING as u32 + 1).await;
    }
}

async fn clients_in_turn(engine: EngineHandle, clients: u32) {
    let client = |number: u32| {
        let engine = engine.clone();
        async move {
            for round in 0..100 {
                let tokens = 1 + (number + round) % 4;
                let stream = engine.generate(answer(tokens)).await;
                let stream = stream.unwrap_or_else(|e| panic!("client {number}, {round}: {e}"));
                assert_eq!(read(stream, 1).await.2, None);
            }
        }
    };
    let clients: Vec<_> = (0..clients)
        .map(|number| tokio::spawn(client(number)))
        .collect();
    for client in clients {
        client.await.expect("every request was taken");
    }
}

#[tokio::test]
async fn beyond_places_and_queue_a_burst_is_refused() {
    let (began, begin) = channel();
    let (go_on, wait) = channel::<()>();
    let fake = Fake::new(400, 0, move |_| {
        let _ = began.send(());
        let _ = wait.recv();
        None
    });
    let engine = queueing(fake, 400, (RUNNING, WAITING));
    let mut streams = vec![engine.generate(answer(5)).await.expect("taken")];
    begin
        .recv_timeout(Duration::from_secs(10))
        .expect("the first step begins");
    // One runs: seven places and the queue are left, for choices as for requests.
    let two = SamplingOptions {
        ignore_eos: true,
        max_tokens: Some(5),
        n: 2,
        ..Default::default()
    };
    streams.push(
        engine
            .generate(request(&[1], two))
            .await
            .expect("two places"),
    );
    for _ in 0..RUNNING + WAITING - 3 {
        streams.push(
            engine
                .generate(answer(5))
                .await
                .expect("a place or room to wait"),
        );
    }
    let refused = engine.generate(answer(5)).await.err();
    assert!(matches!(
        refused,
        Some(RequestError::QueueFull { limit: 10 })
    ));
    drop(go_on);
    for (index, stream) in streams.into_iter().enumerate() {
        let choices = if index == 1 { 2 } else { 1 };
        assert_eq!(read(stream, choices).await.2, None);
    }
}
