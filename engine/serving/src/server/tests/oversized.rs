//! Requests in which something is too large: refused at once, and never the engine's business.

use std::time::Instant;

use prost::Message as _;

use super::*;
use crate::sampling::{LOGIT_BIAS_MAX, STOP_BYTES_MAX, STOP_IDS_MAX, STOP_STRINGS_MAX};

/// Within this time; the best of some tries, as other programs may have the machine.
const TIME: Duration = Duration::from_millis(10);
const TRIES: usize = 20;

fn with(change: impl FnOnce(&mut v1::SamplingParams)) -> v1::GenerateRequest {
    let mut params = v1::SamplingParams::default();
    change(&mut params);
    v1::GenerateRequest {
        sampling: Some(params),
        ..text("count")
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused_within_10_ms() {
    let (fake, port) = in_memory();
    let id = v1::GenerateRequest {
        request_id: "x".repeat(90_000),
        ..text("count")
    };
    let bits = v1::GenerateRequest {
        min_kv_bits: Some(u32::MAX),
        ..text("count")
    };
    let letters = |n: usize| vec!["x".to_owned(); n];
    for (field, request) in [
        ("request_id", id),
        ("min_kv_bits", bits),
        ("sampling.n", with(|p| p.n = Some(u32::MAX))),
        (
            "sampling.stop",
            with(|p| p.stop = letters(STOP_STRINGS_MAX + 1)),
        ),
        ("sampling.stop", with(|p| p.stop = letters(30_000))),
        (
            "sampling.stop[0]",
            with(|p| p.stop = vec!["x".repeat(STOP_BYTES_MAX + 1)]),
        ),
        (
            "sampling.stop[0]",
            with(|p| p.stop = vec!["x".repeat(90_000)]),
        ),
        (
            "sampling.stop_token_ids",
            with(|p| p.stop_token_ids = vec![1; STOP_IDS_MAX + 1]),
        ),
        (
            "sampling.stop_token_ids",
            with(|p| p.stop_token_ids = vec![1; 90_000]),
        ),
        (
            "sampling.logit_bias",
            with(|p| p.logit_bias = (0..=LOGIT_BIAS_MAX as u32).map(|id| (id, 1.0)).collect()),
        ),
        ("sampling.logprobs", with(|p| p.logprobs = Some(u32::MAX))),
        (
            "sampling.prompt_logprobs",
            with(|p| p.prompt_logprobs = Some(u32::MAX)),
        ),
    ] {
        let message = request.encode_to_vec();
        let status = quickly(&port, &message).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status}");
        assert!(
            status.message().starts_with(&format!("{field}: ")),
            "{field}: {status}"
        );
        assert!(status.message().len() < 2000, "{field}: {status}");
    }
    // A message beyond the limit is not read.
    let status = quickly(&port, &text(&"x".repeat(200_000)).encode_to_vec()).await;
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    assert_eq!(fake.0.live.load(Ordering::Relaxed), 0);
    assert_eq!(fake.0.aborted.load(Ordering::Relaxed), 0);
}

async fn quickly(port: &InMemory, message: &[u8]) -> Status {
    let body = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        let status = ask(port, "Generate", body.clone()).await;
        best = best.min(start.elapsed());
        if best <= TIME {
            return status;
        }
    }
    panic!("{} bytes are refused after {best:?}", message.len());
}
