//! Every sample is the one that the definitions give: filters by full sort, inversion in `f64`.

use std::sync::Arc;

use ebb_serving::sampling::{Sampler, SamplerState, SamplingOptions};
use proptest::prelude::*;

use crate::naive;

/// How close to a boundary (a cut of a filter, an end of a token's share) rounding may decide.
const TIE: f64 = 1e-5;

fn logits() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -10.0f32..10.0,
        2 => (-3i8..3).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
    ];
    let any = prop::collection::vec(value, 1..700);
    any.prop_filter("a token must be possible", |l| {
        l.iter().any(|l| l.is_finite())
    })
}

fn options() -> impl Strategy<Value = SamplingOptions> {
    (
        0.1f32..3.0,
        prop_oneof![Just(0u32), 1u32..20, 1u32..1000],
        prop_oneof![Just(1.0f32), 0.01f32..1.0, 0.9f32..1.0],
        prop_oneof![Just(0.0f32), 0.0001f32..1.0],
    )
        .prop_map(|(temperature, top_k, top_p, min_p)| SamplingOptions {
            temperature,
            top_k,
            top_p,
            min_p,
            ..SamplingOptions::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn draws_are_those_of_the_definitions(
        mut logits in logits(),
        options in options(),
        seed in any::<u64>(),
        choice in 0u32..4,
    ) {
        let (probabilities, margin) = naive::filtered(&logits, &options);
        prop_assume!(margin > TIE);
        let params = Arc::new(options.validate(logits.len()).expect("valid"));
        let mut state = SamplerState::new(params, &[], &[], seed).sibling(choice);
        let mut sampler = Sampler::new();
        let before = logits.clone();
        for position in 0..8 {
            let uniform = naive::uniform(seed, choice, position);
            let (expected, margin) = naive::invert(&probabilities, uniform);
            let sampled = sampler.sample(&mut logits, &mut state).expect("a token");
            let probability = probabilities[sampled.token as usize];
            prop_assert!(probability > 0.0, "a token that was filtered out");
            if margin > TIE {
                prop_assert_eq!(sampled.token, expected);
            }
        }
        prop_assert_eq!(logits, before);
    }
}

#[test]
fn the_kept_sets_are_exact() {
    // Probabilities 8, 4, 2, 1, 1 sixteenths, scattered over a larger vocabulary.
    let ids = [700, 3, 512, 130, 131];
    let mut logits = vec![f32::NEG_INFINITY; 1000];
    for (id, sixteenths) in ids.into_iter().zip([8.0f32, 4.0, 2.0, 1.0, 1.0]) {
        logits[id] = sixteenths.ln();
    }
    let cases: [(&str, SamplingOptions, &[u32]); 12] = [
        ("all", options_with(0, 1.0, 0.0), &[3, 130, 131, 512, 700]),
        ("top 1", options_with(1, 1.0, 0.0), &[700]),
        ("top 3", options_with(3, 1.0, 0.0), &[3, 512, 700]),
        (
            "of equals the lower id",
            options_with(4, 1.0, 0.0),
            &[3, 130, 512, 700],
        ),
        (
            "more than there are",
            options_with(99, 1.0, 0.0),
            &[3, 130, 131, 512, 700],
        ),
        ("a nucleus of one", options_with(0, 0.49, 0.0), &[700]),
        ("a nucleus of two", options_with(0, 0.74, 0.0), &[3, 700]),
        (
            "a nucleus with one of equals",
            options_with(0, 0.93, 0.0),
            &[3, 130, 512, 700],
        ),
        ("a nucleus of the top 2", options_with(2, 0.6, 0.0), &[700]),
        (
            "a fifth of the best",
            options_with(0, 1.0, 0.2),
            &[3, 512, 700],
        ),
        ("the best alone", options_with(0, 1.0, 1.0), &[700]),
        (
            "a nucleus of what min-p left",
            options_with(0, 0.9, 0.3),
            &[3, 700],
        ),
    ];
    for (name, options, expected) in cases {
        let params = Arc::new(options.validate(logits.len()).expect("valid"));
        let mut state = SamplerState::new(params, &[], &[], 1);
        let mut sampler = Sampler::new();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            seen.insert(
                sampler
                    .sample(&mut logits, &mut state)
                    .expect("a token")
                    .token,
            );
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected, "{name}");
    }
}

#[test]
fn min_p_of_one_keeps_all_of_the_best() {
    let params = Arc::new(options_with(0, 1.0, 1.0).validate(3).expect("valid"));
    let mut state = SamplerState::new(params, &[], &[], 1);
    let mut sampler = Sampler::new();
    let mut seen = [0; 3];
    for _ in 0..100 {
        let sampled = sampler.sample(&mut [1.0, 0.5, 1.0], &mut state);
        seen[sampled.expect("a token").token as usize] += 1;
    }
    assert!(seen[0] > 20 && seen[1] == 0 && seen[2] > 20, "{seen:?}");
}

fn options_with(top_k: u32, top_p: f32, min_p: f32) -> SamplingOptions {
    SamplingOptions {
        top_k,
        top_p,
        min_p,
        ..SamplingOptions::default()
    }
}

#[test]
fn large_vocabularies_agree_too() {
    // Peaked as a language model's, and flat, where a nucleus has tens of thousands of tokens.
    for (spread, temperature) in [(3.0, 1.0), (1.0, 1.5)] {
        let mut noise = naive::Noise::new(5);
        let mut logits: Vec<f32> = (0..50_000).map(|_| noise.normal() * spread).collect();
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (0, 0.95, 0.0),
            (0, 0.5, 0.0),
            (50, 1.0, 0.0),
            (20_000, 0.9, 0.0),
            (0, 1.0, 0.05),
        ] {
            let options = SamplingOptions {
                temperature,
                ..options_with(top_k, top_p, min_p)
            };
            let (probabilities, margin) = naive::filtered(&logits, &options);
            let params = Arc::new(options.validate(logits.len()).expect("valid"));
            let mut state = SamplerState::new(params, &[], &[], 77);
            let mut sampler = Sampler::new();
            let mut compared = 0;
            for position in 0..200 {
                let u = naive::uniform(77, 0, position);
                let (expected, distance) = naive::invert(&probabilities, u);
                let token = sampler
                    .sample(&mut logits, &mut state)
                    .expect("a token")
                    .token;
                if distance > 3e-7 && margin > 1e-9 {
                    assert_eq!(token, expected, "{top_k} {top_p} {min_p} at {position}");
                    compared += 1;
                }
            }
            assert!(
                compared > 150,
                "{compared} of 200 samples were away from a boundary"
            );
        }
    }
}
