//! How long one token takes to choose. Run when the machine is quiet:
//! `cargo test --release -p ebb-serving --test sampling speed -- --ignored --nocapture`

use std::sync::Arc;
use std::time::Instant;

use ebb_serving::sampling::{Sampler, SamplerState, SamplingOptions};

use crate::naive::Noise;

/// How probability falls off over the vocabulary.
#[derive(Clone, Copy)]
enum Shape {
    /// As a language model's: the token of rank r has r^-1.5 of the first one's probability, which
    /// is 38 %; the nucleus of 0.95 has some 240 tokens.
    Peaked,
    /// Normal logits of this spread. At 3 the nucleus of 0.95 has some 11,000 tokens of 128,000.
    Normal(f32),
}

fn row(shape: Shape, vocab: usize, noise: &mut Noise) -> Vec<f32> {
    match shape {
        Shape::Normal(spread) => (0..vocab).map(|_| noise.normal() * spread).collect(),
        Shape::Peaked => {
            let mut row: Vec<f32> = (1..=vocab).map(|r| -1.5 * (r as f32).ln()).collect();
            for i in (1..vocab).rev() {
                row.swap(i, (noise.unit() * (i + 1) as f64) as usize);
            }
            row
        }
    }
}

/// Median microseconds of a call, over eight different rows.
fn median_us(vocab: usize, options: SamplingOptions, shape: Shape) -> f64 {
    let mut noise = Noise::new(3);
    let mut rows: Vec<_> = (0..8).map(|_| row(shape, vocab, &mut noise)).collect();
    let params = Arc::new(options.validate(vocab).expect("valid"));
    let prompt: Vec<u32> = (0..500).collect();
    let mut state = SamplerState::new(params, &[], &prompt, 0);
    let mut sampler = Sampler::new();
    let mut times: Vec<f64> = Vec::new();
    for i in 0..400 {
        let row = &mut rows[i % 8];
        let start = Instant::now();
        sampler.sample(row, &mut state).expect("a token");
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
#[ignore = "a measurement, meaningful in release on a quiet machine"]
fn speed() {
    let options = |change: fn(&mut SamplingOptions)| {
        let mut options = SamplingOptions::default();
        change(&mut options);
        options
    };
    let greedy = options(|o| o.temperature = 0.0);
    let greedy_logprobs = options(|o| (o.temperature, o.logprobs) = (0.0, Some(5)));
    let plain = options(|_| {});
    let top_k = options(|o| o.top_k = 50);
    let top_p = options(|o| o.top_p = 0.95);
    let both = options(|o| (o.top_k, o.top_p) = (50, 0.95));
    let min_p = options(|o| o.min_p = 0.05);
    let everything = options(|o| {
        (o.top_p, o.logprobs) = (0.95, Some(20));
        (o.repetition_penalty, o.presence_penalty) = (1.1, 0.5);
    });
    let large_k = options(|o| o.top_k = 20_000);

    let (small, large, any) = (49_152, 128_256, f64::INFINITY);
    let (peaked, wide, flat) = (Shape::Peaked, Shape::Normal(3.0), Shape::Normal(1.0));
    let mut slow = Vec::new();
    for (name, vocab, options, shape, at_most) in [
        ("greedy", small, &greedy, peaked, any),
        ("greedy, 5 logprobs", small, &greedy_logprobs, peaked, 100.0),
        ("temperature", small, &plain, peaked, any),
        ("greedy", large, &greedy, peaked, any),
        ("greedy, 5 logprobs", large, &greedy_logprobs, peaked, any),
        ("temperature", large, &plain, peaked, any),
        ("top-k 50", large, &top_k, peaked, 300.0),
        ("top-p 0.95", large, &top_p, peaked, 300.0),
        ("top-k 50, top-p 0.95", large, &both, peaked, 300.0),
        ("min-p 0.05", large, &min_p, peaked, 300.0),
        (
            "top-p, penalties, 20 logprobs",
            large,
            &everything,
            peaked,
            any,
        ),
        ("top-k 50, wide", large, &top_k, wide, 300.0),
        ("top-p 0.95, wide", large, &top_p, wide, any),
        ("top-p 0.95, flat", large, &top_p, flat, any),
        ("top-k 20000, flat", large, &large_k, flat, any),
    ] {
        let us = median_us(vocab, options.clone(), shape);
        println!("{vocab:7} {name:32} {us:8.1} µs");
        if us > at_most {
            slow.push(format!(
                "{vocab} {name}: {us:.1} µs, at most {at_most} wanted"
            ));
        }
    }
    // A debug build is not what anybody runs.
    assert!(slow.is_empty() || cfg!(debug_assertions), "{slow:#?}");
}
