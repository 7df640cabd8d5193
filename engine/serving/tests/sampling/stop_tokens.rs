//! End tokens, stop ids, `min_tokens`, `max_tokens` and `ignore_eos`.

use std::sync::Arc;

use ebb_serving::sampling::{SampleError, Sampler, SamplerState, SamplingOptions};

const EOS: u32 = 2;

fn state(change: impl FnOnce(&mut SamplingOptions)) -> SamplerState {
    let mut options = SamplingOptions {
        temperature: 0.0,
        ..SamplingOptions::default()
    };
    change(&mut options);
    let params = Arc::new(options.validate(4).expect("valid"));
    SamplerState::new(params, &[EOS], &[], 0)
}

#[test]
fn end_tokens_and_stop_ids_end_a_choice() {
    let mut sampler = Sampler::new();
    let mut choice = state(|o| o.stop_token_ids = vec![3]);
    let sampled = sampler.sample(&mut [0.0, 0.0, 9.0, 0.0], &mut choice);
    assert_eq!(sampled.expect("a token").token, EOS);
    assert!(choice.is_end(EOS) && choice.is_end(3) && !choice.is_end(1));

    let ignoring = state(|o| {
        o.stop_token_ids = vec![3];
        o.ignore_eos = true;
    });
    assert!(!ignoring.is_end(EOS) && ignoring.is_end(3));
    let asked_for = state(|o| {
        o.stop_token_ids = vec![EOS];
        o.ignore_eos = true;
    });
    assert!(asked_for.is_end(EOS));
}

#[test]
fn no_end_before_min_tokens() {
    let mut sampler = Sampler::new();
    let mut choice = state(|o| {
        o.min_tokens = 3;
        o.stop_token_ids = vec![3];
    });
    assert!(!choice.is_end(EOS));
    let mut row = [0.0, 1.0, 9.0, 8.0];
    let mut tokens = Vec::new();
    while tokens.last() != Some(&EOS) {
        assert_eq!(choice.stops_armed(), tokens.len() >= 3);
        tokens.push(
            sampler
                .sample(&mut row, &mut choice)
                .expect("a token")
                .token,
        );
    }
    assert_eq!(tokens, [1, 1, 1, EOS]);
    assert!(choice.is_end(EOS));

    let mut impossible = state(|o| {
        o.min_tokens = 1;
        o.stop_token_ids = vec![0, 1, 3];
    });
    let sampled = sampler.sample(&mut row, &mut impossible);
    assert_eq!(sampled, Err(SampleError::NoCandidate));
    assert_eq!(row, [0.0, 1.0, 9.0, 8.0]);
}

#[test]
fn max_tokens_fills_a_choice() {
    let mut sampler = Sampler::new();
    let mut choice = state(|o| o.max_tokens = Some(2));
    let mut full = Vec::new();
    for _ in 0..2 {
        sampler
            .sample(&mut [0.0, 1.0, 0.0, 0.0], &mut choice)
            .expect("a token");
        full.push(choice.is_full());
    }
    assert_eq!(full, [false, true]);
    assert!(!state(|_| {}).is_full());
}
