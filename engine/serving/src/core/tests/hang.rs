//! A device that does not come back.
#![expect(
    clippy::await_holding_lock,
    reason = "the lock holds the engine's thread up, not a task"
)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use parking_lot::Mutex;

use super::fake::Fake;
use super::*;

fn endless() -> SamplingOptions {
    SamplingOptions {
        ignore_eos: true,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_hung_step_is_seen_and_keeps_nobody() {
    for depth in [1, 2] {
        let fake = Fake::new(400, depth, |_| None);
        let held = fake.held.clone();
        let engine = engine(fake, 400);
        assert_eq!(engine.state().step_age, Duration::ZERO);
        let lock = held.lock();
        let asked = Instant::now();
        let mut request = request(&[1], endless());
        request.timeout = Some(Duration::from_millis(500));
        let stream = engine.generate(request).await.expect("taken");
        assert!(!engine.is_hung());
        // The deadline is kept without the engine.
        let (_, _, error) = read(stream, 1).await;
        assert!(
            matches!(error, Some(RequestError::DeadlineExceeded)),
            "{error:?}"
        );
        let waited = asked.elapsed();
        assert!(waited >= Duration::from_millis(500) && waited < Duration::from_millis(900));
        assert!(engine.is_hung() && engine.alive());
        assert!(engine.state().step_age >= HANG_TIMEOUT);
        assert_eq!(engine.state().running, 1, "a first step shows what runs");

        drop(lock);
        engine.drain(Duration::from_secs(10)).await;
        assert!(!engine.is_hung());
        assert_eq!(engine.state().step_age, Duration::ZERO);
    }
}

#[tokio::test]
async fn nobody_waits_for_a_hung_engine_to_close() {
    let fake = Fake::new(400, 1, |_| None);
    let held = fake.held.clone();
    let engine = engine(fake, 400);
    let lock = held.lock();
    let _stream = engine.generate(request(&[1], endless())).await;
    tokio::time::sleep(HANG_TIMEOUT * 2).await;
    let began = Instant::now();
    engine.drain(Duration::from_millis(100)).await;
    let drained = began.elapsed();
    engine.close();
    drop(engine);
    let closed = began.elapsed();
    drop(lock);
    assert!(drained < Duration::from_secs(3), "{drained:?}");
    assert!(
        closed - drained < Duration::from_secs(1),
        "{drained:?}, {closed:?}"
    );
}

/// Steps that take long, a full batch and a queue are no hang.
#[tokio::test]
async fn load_is_no_hang() {
    let mut fake = Fake::new(60, 2, |_| None);
    fake.latency = HANG_TIMEOUT / 6;
    let engine = queueing(fake, 60, (2, 40));
    let mut streams = Vec::new();
    for i in 0..20 {
        let mut options = endless();
        options.max_tokens = Some(4);
        streams.push(
            engine
                .generate(request(&[i], options))
                .await
                .expect("taken"),
        );
    }
    let began = Instant::now();
    let (watched, finished) = (engine.clone(), Arc::new(tokio::sync::Notify::new()));
    let end = finished.clone();
    let watcher = tokio::spawn(async move {
        let mut oldest = Duration::ZERO;
        loop {
            assert!(!watched.is_hung());
            oldest = oldest.max(watched.state().step_age);
            tokio::select! {
                () = end.notified() => return oldest,
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    });
    for stream in streams {
        let (_, _, error) = read(stream, 1).await;
        assert!(error.is_none(), "{error:?}");
    }
    finished.notify_one();
    let oldest = watcher.await.expect("never hung");
    assert!(
        began.elapsed() > 3 * HANG_TIMEOUT,
        "too short to tell anything"
    );
    assert!(
        oldest > Duration::ZERO && oldest < HANG_TIMEOUT,
        "{oldest:?}"
    );
}

/// An hour by the engine's own clock: as many requests as may run and wait, and steps of up to five
/// sixths of the time after which the engine would count as hung.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_of_saturation_is_no_hang() {
    const HOUR: u64 = 3600 * 1000;
    let now = Arc::new(AtomicU64::new(0));
    let watched: Arc<Mutex<Option<EngineHandle>>> = Arc::default();
    let mut fake = Fake::new(60, 2, |_| None);
    fake.on_wait = Box::new({
        let (now, watched, mut random) = (now.clone(), watched.clone(), 1_u64);
        move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            now.fetch_add(random % (HANG_TIMEOUT.as_millis() as u64 * 5 / 6), SeqCst);
            if let Some(engine) = watched.lock().as_ref() {
                assert!(!engine.is_hung(), "{:?}", engine.state().step_age);
            }
        }
    });
    let clock: Clock = Arc::new({
        let now = now.clone();
        move || Duration::from_millis(now.load(SeqCst))
    });
    let places = (2, 40);
    let engine = clocked(fake, 60, places, ClientMemory::unlimited(), clock);
    *watched.lock() = Some(engine.clone());
    let clients = (0..42).map(|i| {
        let (engine, now) = (engine.clone(), now.clone());
        tokio::spawn(async move {
            let mut answers = 0;
            while now.load(SeqCst) < HOUR {
                let mut options = endless();
                options.max_tokens = Some(60);
                let stream = engine.generate(request(&[i], options)).await;
                let (_, _, error) = read(stream.expect("a place"), 1).await;
                assert!(error.is_none(), "{error:?}");
                answers += 1;
            }
            answers
        })
    });
    let mut answers = 0;
    for client in clients.collect::<Vec<_>>() {
        answers += client.await.expect("answered");
    }
    *watched.lock() = None;
    assert!(now.load(SeqCst) >= HOUR && answers > 500, "{answers}");
}
