//! The same seed gives the same tokens, whatever else the sampler does in between.

use std::sync::Arc;

use ebb_serving::sampling::{Sampler, SamplerState, SamplingOptions};

use crate::naive::Noise;

fn state(seed: u64, choice: u32, vocab: usize) -> SamplerState {
    let options = SamplingOptions {
        temperature: 0.8 + choice as f32 * 0.1,
        top_k: if choice.is_multiple_of(2) { 40 } else { 0 },
        top_p: 0.95,
        repetition_penalty: 1.1,
        ..SamplingOptions::default()
    };
    let params = Arc::new(options.validate(vocab).expect("valid"));
    SamplerState::new(params, &[], &[1, 2, 3], seed).sibling(choice)
}

/// A stand-in for a model: logits that depend on the tokens so far.
fn row(history: &[u32], vocab: usize) -> Vec<f32> {
    let last = history.last().map_or(7, |&t| u64::from(t));
    let mut noise = Noise::new(last + 1000 * history.len() as u64);
    (0..vocab).map(|_| noise.normal() * 2.0).collect()
}

#[test]
fn tokens_do_not_depend_on_what_shares_the_batch() {
    const VOCAB: usize = 500;
    let streams = [(1u64, 0u32), (1, 1), (1, 2), (2, 0), (u64::MAX, 3)];
    let alone: Vec<Vec<u32>> = streams
        .iter()
        .map(|&(seed, choice)| {
            let mut sampler = Sampler::new();
            let mut state = state(seed, choice, VOCAB);
            let mut tokens = Vec::new();
            for _ in 0..30 {
                let mut row = row(&tokens, VOCAB);
                tokens.push(sampler.sample(&mut row, &mut state).expect("a token").token);
            }
            tokens
        })
        .collect();

    let mut sampler = Sampler::new();
    let mut states: Vec<_> = streams.iter().map(|&(s, c)| state(s, c, VOCAB)).collect();
    let mut together = vec![Vec::new(); streams.len()];
    for step in 0..60 {
        for i in 0..streams.len() {
            // Streams take part in different steps, in changing order.
            let i = (i + step) % streams.len();
            if (step + i).is_multiple_of(2) && together[i].len() < 30 {
                let mut row = row(&together[i], VOCAB);
                let sampled = sampler.sample(&mut row, &mut states[i]);
                together[i].push(sampled.expect("a token").token);
            }
        }
    }
    assert_eq!(alone, together);
    assert_ne!(alone[0], alone[3], "another seed, other tokens");
}

#[test]
fn choices_share_a_prompt_but_not_a_stream() {
    let params = Arc::new(SamplingOptions::default().validate(1000).expect("valid"));
    let first = SamplerState::new(params, &[], &[5], 9);
    let mut sampler = Sampler::new();
    let mut row = vec![0.0; 1000];
    let mut tokens = Vec::new();
    for choice in 0..8 {
        let mut state = first.sibling(choice);
        tokens.push(sampler.sample(&mut row, &mut state).expect("a token").token);
    }
    let mut again = first.sibling(0);
    assert_eq!(
        sampler.sample(&mut row, &mut again).expect("a token").token,
        tokens[0]
    );
    tokens.sort_unstable();
    tokens.dedup();
    assert!(tokens.len() >= 7, "{tokens:?}");
}

#[test]
fn a_sibling_has_generated_nothing() {
    let options = SamplingOptions {
        temperature: 0.0,
        presence_penalty: 2.0,
        ..SamplingOptions::default()
    };
    let params = Arc::new(options.validate(2).expect("valid"));
    let mut first = SamplerState::new(params, &[], &[], 0);
    let mut sampler = Sampler::new();
    let mut token = |state: &mut SamplerState| {
        let sampled = sampler.sample(&mut [1.0, 0.0], state);
        sampled.expect("a token").token
    };
    assert_eq!(token(&mut first), 0);
    let mut second = first.sibling(1);
    assert_eq!((first.generated(), second.generated()), (1, 0));
    assert_eq!(token(&mut first), 1, "the first token is penalised");
    assert_eq!(token(&mut second), 0, "but not for the sibling");
}

/// Recorded once: a change of these numbers is a change of what users' seeds mean.
#[test]
fn seeds_keep_their_meaning() {
    let params = Arc::new(SamplingOptions::default().validate(50_000).expect("valid"));
    let mut state = SamplerState::new(params, &[], &[], 1234);
    let mut row: Vec<f32> = (0..50_000)
        .map(|i| (i * 7919 % 1009) as f32 / 64.0)
        .collect();
    let mut sampler = Sampler::new();
    let tokens: Vec<u32> = (0..8)
        .map(|_| sampler.sample(&mut row, &mut state).expect("a token").token)
        .collect();
    assert_eq!(
        tokens,
        [42676, 5606, 49230, 6958, 45913, 9998, 33218, 21625]
    );
}
