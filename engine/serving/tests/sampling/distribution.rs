//! Chi-square tests of the samples against exact probabilities. Seeds are fixed: a pass is a pass.

use std::collections::HashMap;
use std::sync::Arc;

use ebb_serving::sampling::{Sampler, SamplerState, SamplingOptions, SamplingParams};

use crate::naive;

/// Six standard deviations above the mean of the chi-square distribution.
fn assert_fits(observed: &[u64], probabilities: &[f64], what: &str) {
    let n: u64 = observed.iter().sum();
    let mut chi = 0.0;
    let mut cells = 0.0;
    for (&count, &p) in observed.iter().zip(probabilities) {
        if p == 0.0 {
            assert_eq!(count, 0, "{what}: an impossible token was sampled");
            continue;
        }
        let expected = p * n as f64;
        assert!(expected > 5.0, "{what}: too few samples for this test");
        chi += (count as f64 - expected).powi(2) / expected;
        cells += 1.0;
    }
    let freedom: f64 = cells - 1.0;
    let bound = freedom + 6.0 * (2.0 * freedom).sqrt();
    assert!(
        chi < bound,
        "{what}: chi-square {chi:.1}, at most {bound:.1} expected"
    );
}

fn params(options: SamplingOptions, vocab: usize) -> Arc<SamplingParams> {
    Arc::new(options.validate(vocab).expect("valid"))
}

fn logits() -> Vec<f32> {
    (0..40).map(|i| ((i * 29 % 40) as f32) * 0.1).collect()
}

#[test]
fn positions_of_one_stream_are_distributed_as_the_model_says() {
    let cases = [
        SamplingOptions::default(),
        SamplingOptions {
            temperature: 0.5,
            ..SamplingOptions::default()
        },
        SamplingOptions {
            temperature: 2.0,
            top_k: 7,
            ..SamplingOptions::default()
        },
        SamplingOptions {
            top_p: 0.8,
            ..SamplingOptions::default()
        },
        SamplingOptions {
            min_p: 0.3,
            ..SamplingOptions::default()
        },
        SamplingOptions {
            top_k: 20,
            top_p: 0.9,
            min_p: 0.05,
            ..SamplingOptions::default()
        },
    ];
    for options in cases {
        let mut logits = logits();
        let (probabilities, _) = naive::filtered(&logits, &options);
        let mut state = SamplerState::new(params(options.clone(), 40), &[], &[], 2024);
        let mut sampler = Sampler::new();
        let mut observed = vec![0; logits.len()];
        for _ in 0..100_000 {
            observed[sampler
                .sample(&mut logits, &mut state)
                .expect("a token")
                .token as usize] += 1;
        }
        assert_fits(&observed, &probabilities, &format!("{options:?}"));
    }
}

#[test]
fn first_tokens_of_many_seeds_are_too() {
    let mut logits = logits();
    let options = SamplingOptions::default();
    let (probabilities, _) = naive::filtered(&logits, &options);
    let params = params(options, 40);
    let mut sampler = Sampler::new();
    let mut observed = vec![0; logits.len()];
    for seed in 0..100_000 {
        let mut state = SamplerState::new(Arc::clone(&params), &[], &[], seed);
        observed[sampler
            .sample(&mut logits, &mut state)
            .expect("a token")
            .token as usize] += 1;
    }
    assert_fits(&observed, &probabilities, "seeds 0 to 99,999");
}

/// Pairs of samples that must not know of each other: neighbouring positions, choices and seeds.
#[test]
fn neighbouring_draws_are_independent() {
    let mut logits: Vec<f32> = vec![0.0, 1.0, 0.5, -0.5, 2.0];
    let p = naive::softmax(&logits, 1.0);
    let joint: Vec<f64> = p
        .iter()
        .flat_map(|a| p.iter().map(move |b| a * b))
        .collect();
    let params = params(SamplingOptions::default(), 5);
    let mut sampler = Sampler::new();
    let mut tokens = HashMap::new();
    for seed in 0..301u64 {
        for choice in 0..9 {
            let first = SamplerState::new(Arc::clone(&params), &[], &[], seed);
            let mut state = first.sibling(choice);
            for position in 0..21 {
                let token = sampler
                    .sample(&mut logits, &mut state)
                    .expect("a token")
                    .token;
                tokens.insert((seed, choice, position), token);
            }
        }
    }
    for (what, seeds, choices, positions) in [
        ("positions", 0, 0, 1),
        ("choices", 0, 1, 0),
        ("seeds", 1, 0, 0),
    ] {
        let mut observed = vec![0; 25];
        for seed in 0..300 {
            for choice in 0..8 {
                for position in 0..20 {
                    let a = tokens[&(seed, choice, position)];
                    let b = tokens[&(seed + seeds, choice + choices, position + positions)];
                    observed[(a * 5 + b) as usize] += 1;
                }
            }
        }
        assert_fits(&observed, &joint, what);
    }
}
