//! Looks at the pool of a running engine.
#![expect(
    clippy::await_holding_lock,
    reason = "the lock holds the engine's thread up, not a task"
)]

use std::time::Instant;

use super::fake::Fake;
use super::*;

/// So that the last look is no longer recent.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(150)).await;
}

#[tokio::test]
async fn an_idle_engine_is_seen_as_it_is_now() {
    let engine = engine(Fake::new(400, 2, |_| None), 400);
    let stream = engine.generate(request(&[1; 40], SamplingOptions::default()));
    read(stream.await.expect("taken"), 1).await;
    pause().await;
    let asked = Instant::now();
    let look = engine.kv_pool().await;
    assert!(look.at >= asked);
    assert_eq!((look.state.running, look.pool.frames), (0, 400));
    assert_eq!(look.pool.tokens_prefill, 40);
    assert_eq!(look.state.kv_bytes_total, 400 * look.pool.frame_bytes);
}

#[tokio::test]
async fn callers_share_a_recent_look() {
    let engine = engine(Fake::new(400, 2, |_| None), 400);
    pause().await;
    let asked = Instant::now();
    let looks = (0..50).map(|_| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.kv_pool().await.at })
    });
    let mut times = Vec::new();
    for look in looks.collect::<Vec<_>>() {
        times.push(look.await.expect("a look"));
    }
    times.sort();
    times.dedup();
    // One to begin with, and ten a second: on a busy machine fifty callers take a while.
    let most = 2 + asked.elapsed().as_millis() / 100;
    assert!(
        times.len() as u128 <= most,
        "{} looks were made, {most} may be",
        times.len()
    );
}

#[tokio::test]
async fn a_step_that_does_not_end_leaves_the_last_look() {
    let fake = Fake::new(400, 1, |_| None);
    let held = fake.held.clone();
    let engine = engine(fake, 400);
    let lock = held.lock();
    let stream = engine.generate(request(&[1; 40], SamplingOptions::default()));
    let stream = stream.await.expect("taken");
    pause().await;
    let asked = Instant::now();
    let look = engine.kv_pool().await;
    assert!(look.at < asked && asked.elapsed() < Duration::from_secs(4));
    drop(lock);
    read(stream, 1).await;
    pause().await;
    let asked = Instant::now();
    assert!(engine.kv_pool().await.at > asked);
}

#[tokio::test]
async fn looks_take_no_place_of_requests() {
    let fake = Fake::new(400, 1, |_| None);
    let held = fake.held.clone();
    // One runs, and one waits.
    let engine = queueing(fake, 400, (1, 1));
    let lock = held.lock();
    let ask = |token| engine.generate(request(&[token], SamplingOptions::default()));
    let first = ask(1).await.expect("taken");
    pause().await;
    let looks = (0..20).map(|_| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.kv_pool().await })
    });
    let looks: Vec<_> = looks.collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = ask(2).await.expect("there is a place");
    drop(lock);
    for stream in [first, second] {
        assert_eq!(read(stream, 1).await.2, None);
    }
    for look in looks {
        look.await.expect("a look");
    }
}
