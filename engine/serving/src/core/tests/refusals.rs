//! Requests that are refused, or end before their answer does: what names the cause, and what
//! counts them.

use super::*;
use crate::core::Field;
use crate::sampling::Param;

fn invalid(error: Option<RequestError>) -> (Field, String) {
    match error {
        Some(RequestError::Invalid { field, message }) => (field, message),
        other => panic!("{other:?}"),
    }
}

async fn outcome(engine: &EngineHandle, request: Request) -> Option<RequestError> {
    let n = request.sampling.n;
    match engine.generate(request).await {
        Ok(stream) => read(stream, n).await.2,
        Err(error) => Some(error),
    }
}

#[tokio::test]
async fn more_choices_than_may_run_are_refused_by_name() {
    for depth in [0, 1] {
        let engine = queueing(Fake::new(400, depth, |_| None), 400, (2, 16));
        let options = |n| SamplingOptions {
            n,
            max_tokens: Some(3),
            ..Default::default()
        };
        let (field, message) = invalid(outcome(&engine, request(&[1], options(3))).await);
        assert_eq!(field, Field::Sampling(Param::N), "{message}");
        // gRPC puts `sampling.` before it.
        assert_eq!(field.to_string(), "n");
        assert_eq!(outcome(&engine, request(&[1], options(2))).await, None);
    }
}

#[tokio::test]
async fn what_fits_at_fewer_bits_alone_names_the_bits() {
    let block = GEOMETRY.frame_layout().frames_per_sub_block as u32 * 8;
    // At 16 bit three blocks and a half take 29 frames. With the second at 2 they fit.
    let parts = Parts {
        levels: Some([block, 1]),
        ..Parts::default()
    };
    let engine = started(Fake::new(400, 1, |_| None), 3 * block + 2, parts);
    let ask = |bits| Request {
        min_kv_bits: bits,
        ..request(
            &[3; 450],
            SamplingOptions {
                max_tokens: Some(3),
                ..Default::default()
            },
        )
    };
    let (field, message) = invalid(outcome(&engine, ask(Some(16))).await);
    assert_eq!(field, Field::MinKvBits, "{message}");
    assert!(message.contains("lower min_kv_bits"), "{message}");
    // Nothing that it asks for is at fault where no bits would do.
    let engine = engine_of(block);
    let (field, message) = invalid(outcome(&engine, ask(None)).await);
    assert_eq!(field, Field::Prompt, "{message}");
}

/// An engine whose blocks stay at 16 bit.
fn engine_of(frames: u32) -> EngineHandle {
    engine(Fake::new(400, 1, |_| None), frames)
}

#[tokio::test]
async fn a_request_that_ran_and_was_aborted_is_in_the_histograms() {
    let recorder = Recorder::new("m", 512);
    let parts = Parts {
        recorder: recorder.clone(),
        ..Parts::default()
    };
    let mut fake = Fake::new(400, 1, |_| None);
    fake.latency = Duration::from_millis(5);
    let engine = started(fake, 400, parts);
    let options = SamplingOptions {
        ignore_eos: true,
        max_tokens: Some(400),
        ..Default::default()
    };
    let mut stream = engine
        .generate(request(&[1], options))
        .await
        .expect("taken");
    assert!(matches!(
        stream.next().await,
        Some(Ok(StreamEvent::Started { .. }))
    ));
    drop(stream);
    let line = "vllm:e2e_request_latency_seconds_count{";
    for _ in 0..1000 {
        let text = recorder.render(&Default::default());
        let mut lines = text.lines().filter(|l| l.starts_with(line));
        if lines.any(|l| l.ends_with(" 1")) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{}", recorder.render(&Default::default()));
}

#[tokio::test]
async fn scores_of_a_prompt_take_client_memory_as_they_are_made() {
    let ask = || {
        let options = SamplingOptions {
            prompt_logprobs: Some(20),
            max_tokens: Some(2),
            ..Default::default()
        };
        request(&[3; 400], options)
    };
    for depth in [0, 1] {
        let start = |bytes| {
            let memory = ClientMemory::new(bytes);
            let backend = Fake::new(400, depth, |_| None);
            let engine = counting(backend, 400, (16, 16), memory.clone());
            (memory, engine)
        };
        // 399 scores of some 200 bytes each.
        let (memory, engine) = start(60_000);
        let error = outcome(&engine, ask()).await;
        assert!(
            matches!(error, Some(RequestError::ClientMemory(_))),
            "{error:?}"
        );
        assert_eq!(memory.held(), 0);
        let (memory, engine) = start(120_000);
        let mut stream = engine.generate(ask()).await.expect("taken");
        let started = stream.next().await;
        let Some(Ok(StreamEvent::Started {
            prompt_logprobs, ..
        })) = started
        else {
            panic!("{started:?}")
        };
        assert_eq!(prompt_logprobs.len(), 399);
        while stream.next().await.is_some() {}
        drop(stream);
        assert_eq!(memory.held(), 0);
    }
}
