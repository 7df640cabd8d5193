//! Answers with one and with two steps in flight, sampled by the engine and by the backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::fake::{Fake, POISON, Trouble};
use super::*;

/// Frames of a pool in which sequences lose their memory to others.
const SMALL: u32 = 20;

fn never(_: usize) -> Option<Trouble> {
    None
}

/// Requests of every kind: penalties, masks, bias, cuts, choices, reports, stop ids that end an
/// answer while the next step runs.
fn requests() -> Vec<Request> {
    let prompt = |i: u32| -> Vec<u32> { (0..1 + i * 7 % 90).map(|p| (p * 31 + i) % 150).collect() };
    let base = |i: u32| SamplingOptions {
        seed: Some(u64::from(i) << 20 | 99),
        max_tokens: Some(5 + i % 60),
        ..Default::default()
    };
    let kinds: [fn(&mut SamplingOptions); 10] = [
        |_| (),
        |o| o.temperature = 0.0,
        |o| (o.repetition_penalty, o.frequency_penalty) = (1.3, 0.7),
        |o| (o.temperature, o.presence_penalty, o.logprobs) = (0.0, 1.5, Some(3)),
        |o| (o.min_tokens, o.logit_bias) = (4, vec![(END, 6.0), (11, -3.0)]),
        |o| (o.n, o.top_k) = (3, 20),
        |o| (o.top_p, o.min_p, o.logprobs) = (0.9, 0.05, Some(0)),
        |o| o.prompt_logprobs = Some(2),
        |o| (o.n, o.repetition_penalty, o.ignore_eos) = (2, 1.2, true),
        |o| (o.stop_token_ids, o.temperature) = ((0..12).collect(), 1.5),
    ];
    (0..40)
        .map(|i| {
            let mut options = base(i);
            kinds[i as usize % kinds.len()](&mut options);
            request(&prompt(i), options)
        })
        .collect()
}

/// Serves all at once and returns every outcome, how many steps were in flight at most, and how
/// often a sequence lost its memory.
async fn serve(
    depth: usize,
    frames: u32,
    script: impl Fn(usize) -> Option<Trouble> + Send + 'static,
    requests: Vec<Request>,
) -> (Vec<Outcome>, usize, u64) {
    let fake = Fake::new(frames, depth, script);
    let deepest: Arc<AtomicUsize> = fake.deepest.clone();
    let engine = engine(fake, frames);
    let mut streams = Vec::new();
    for request in requests {
        let n = request.sampling.n;
        streams.push((engine.generate(request).await.expect("taken"), n));
    }
    let mut outcomes = Vec::new();
    for (stream, n) in streams {
        outcomes.push(read(stream, n).await);
    }
    nothing_left(&engine).await;
    let preemptions = engine.state().preemptions;
    (outcomes, deepest.load(Ordering::Relaxed), preemptions)
}

/// The engine holds no request and no memory. Streams end a moment before its state says so.
async fn nothing_left(engine: &EngineHandle) {
    for _ in 0..1000 {
        let state = engine.state();
        if (state.running, state.waiting, state.kv_bytes_live) == (0, 0, 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{:?}", engine.state());
}

fn same(got: &[Outcome], want: &[Outcome]) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got, want, "request {i}");
    }
}

#[tokio::test]
async fn answers_do_not_depend_on_the_steps_in_flight_or_on_who_samples() {
    let (want, ..) = serve(0, 400, never, requests()).await;
    assert!(want.iter().all(|(_, _, error)| error.is_none()));
    let ended = |reason| {
        let choices = want.iter().flat_map(|w| &w.0);
        choices
            .filter(|a| a.end.is_some_and(|e| e.0 == reason))
            .count()
    };
    let (stopped, full) = (ended(FinishReason::Stop), ended(FinishReason::Length));
    assert!(stopped > 5 && full > 5, "{stopped} stopped, {full} full");
    // The small pool preempts: what is computed again takes tokens that are still in flight.
    for frames in [400, SMALL] {
        for depth in [1, 2] {
            let (got, deepest, preemptions) = serve(depth, frames, never, requests()).await;
            assert_eq!(deepest, depth);
            assert_eq!(
                preemptions > 0,
                frames == SMALL,
                "{preemptions} preemptions"
            );
            same(&got, &want);
        }
    }
}

#[tokio::test]
async fn failed_steps_are_run_again_without_a_trace_in_the_answers() {
    let (want, ..) = serve(0, 400, never, requests()).await;
    // Two failures at most: nobody sees three in a row, which would end its request.
    let pairs = [
        (Trouble::Wait, Trouble::Wait),
        (Trouble::Wait, Trouble::Submit),
        (Trouble::Submit, Trouble::Wait),
    ];
    for (first, second) in pairs {
        for (at, apart) in [(1, 1), (2, 3), (7, 1), (12, 1), (15, 2), (31, 1)] {
            for (depth, frames) in [(1, 400), (2, 400), (2, SMALL)] {
                let script = move |step| match step {
                    step if step == at => Some(first),
                    step if step == at + apart => Some(second),
                    _ => None,
                };
                let (got, ..) = serve(depth, frames, script, requests()).await;
                same(&got, &want);
            }
        }
    }
}

#[tokio::test]
async fn a_step_that_always_fails_ends_its_requests_and_nothing_hangs() {
    let (outcomes, ..) = serve(2, 400, |_| Some(Trouble::Wait), requests()).await;
    for (_, _, error) in outcomes {
        assert!(
            matches!(error, Some(RequestError::Internal(_))),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn unsound_logits_end_one_request_alone() {
    let (want, ..) = serve(0, 400, never, requests()).await;
    for depth in [0, 1, 2] {
        let mut all = requests();
        let poisoned = SamplingOptions {
            n: 2,
            ..Default::default()
        };
        all.insert(3, request(&[POISON, 1, 2], poisoned));
        let (mut got, ..) = serve(depth, 400, never, all).await;
        let (_, _, error) = got.remove(3);
        let error = error.expect("no answer").to_string();
        assert!(error.contains("not finite"), "{error}");
        same(&got, &want);
    }
}

#[tokio::test]
async fn cancelled_while_in_flight_leaves_the_others_alone_and_no_memory() {
    let mut fake = Fake::new(400, 2, never);
    fake.latency = Duration::from_millis(1);
    let engine = engine(fake, 400);
    let long = SamplingOptions {
        max_tokens: Some(400),
        ignore_eos: true,
        seed: Some(5),
        repetition_penalty: 1.1,
        ..Default::default()
    };
    let short = SamplingOptions {
        max_tokens: Some(40),
        ..long.clone()
    };
    let mut doomed = Vec::new();
    for i in 0..6 {
        let named = Request {
            request_id: format!("doomed-{i}"),
            ..request(&[i, 2, 3], long.clone())
        };
        doomed.push(engine.generate(named).await.expect("taken"));
    }
    let mut late = request(&[90, 1], long.clone());
    late.timeout = Some(Duration::from_millis(40));
    let late = engine.generate(late).await.expect("taken");
    let kept = engine.generate(request(&[80, 1], short.clone())).await;
    // Each has its first token, and so is in flight.
    for stream in &mut doomed {
        assert!(stream.next().await.is_some());
        assert!(stream.next().await.is_some());
    }
    let dropped = doomed.split_off(3);
    drop(dropped);
    for (i, stream) in doomed.into_iter().enumerate() {
        assert!(engine.abort(&format!("doomed-{i}")));
        let (_, _, error) = read(stream, 1).await;
        assert_eq!(error, Some(RequestError::Aborted));
    }
    let (_, _, error) = read(late, 1).await;
    assert_eq!(error, Some(RequestError::DeadlineExceeded));
    let got = read(kept.expect("taken"), 1).await;
    let (want, ..) = serve(0, 400, never, vec![request(&[80, 1], short)]).await;
    assert_eq!(got, want[0]);
    engine.drain(Duration::from_secs(5)).await;
    nothing_left(&engine).await;
}

#[tokio::test]
async fn draining_finishes_what_runs_and_ends_the_rest() {
    let mut fake = Fake::new(400, 2, never);
    fake.latency = Duration::from_millis(2);
    let engine = engine(fake, 400);
    let options = |max_tokens| SamplingOptions {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..Default::default()
    };
    let short = engine
        .generate(request(&[1], options(5)))
        .await
        .expect("taken");
    let long = engine
        .generate(request(&[2], options(500)))
        .await
        .expect("taken");
    engine.drain(Duration::from_millis(200)).await;
    let (answers, _, error) = read(short, 1).await;
    assert_eq!((answers[0].tokens.len(), error), (5, None));
    assert_eq!(read(long, 1).await.2, Some(RequestError::ShuttingDown));
    assert!(engine.alive());
}
