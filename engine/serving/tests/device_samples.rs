//! What the device samples against the CPU sampler, over whole answers: the same tokens, while the
//! last one is never known in time.

use std::sync::Arc;

use ebb_kernels::cuda::Device;
use ebb_kernels::cuda::probe::SampleProbe;
use ebb_kernels::cuda::selftest::Rng;
use ebb_serving::sampling::{Sampler, SamplerState, SamplingOptions};

const VOCAB: usize = 701;
const ANSWERS: usize = 48;
const TOKENS: usize = 7;

fn options(rng: &mut Rng) -> SamplingOptions {
    let mut pick = |values: &[f32]| values[rng.below(values.len())];
    let (temperature, top_p, min_p) = (
        pick(&[0.0, 0.4, 1.0, 1.0, 1.7, 30.0]),
        pick(&[1.0, 1.0, 0.95, 0.6, 0.01]),
        pick(&[0.0, 0.0, 0.02, 0.3]),
    );
    let repetition_penalty = pick(&[1.0, 1.0, 1.2, 0.7]);
    let presence_penalty = pick(&[0.0, 0.0, 1.5, -0.5]);
    let frequency_penalty = pick(&[0.0, 0.0, 0.8, -1.0]);
    let bias = rng.below(3) * 5;
    SamplingOptions {
        temperature,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        top_k: [0, 0, 1, 40, 400][rng.below(5)],
        logit_bias: (0..bias)
            .map(|i| ((i * 131 % VOCAB) as u32, rng.uniform() * 9.0))
            .collect(),
        min_tokens: rng.below(5) as u32,
        stop_token_ids: vec![4, 9, 300],
        logprobs: [None, Some(0), Some(4)][rng.below(3)],
        seed: Some(rng.bits()),
        ..Default::default()
    }
}

#[test]
fn the_device_samples_what_the_cpu_samples() {
    let device = Device::open(0).expect("the emulator");
    let mut probe = SampleProbe::new(&device, VOCAB, ANSWERS, ANSWERS).expect("memory");
    let mut rng = Rng(2);
    let mut sampler = Sampler::new();
    let mut states: Vec<SamplerState> = (0..ANSWERS)
        .map(|choice| {
            let params = options(&mut rng).validate(VOCAB).expect("valid");
            let prompt: Vec<u32> = (0..rng.below(90))
                .map(|_| rng.below(VOCAB) as u32)
                .collect();
            let seed = rng.bits();
            SamplerState::new(Arc::new(params), &[4, 77], &prompt, seed).sibling(choice as u32)
        })
        .collect();
    let mut on_device = states.clone();
    let mut unknown: Vec<Option<u32>> = vec![None; ANSWERS];
    for _ in 0..TOKENS {
        // Few different logits near the top, so that answers repeat tokens and penalties matter.
        let mut logits: Vec<f32> = (0..ANSWERS * VOCAB).map(|_| rng.uniform() * 5.0).collect();
        for row in logits.chunks_exact_mut(VOCAB) {
            row[4] += 6.0;
            row[rng.below(20)] += 7.0;
        }
        let mut edits = Vec::new();
        let requests: Vec<_> = (on_device.iter_mut().zip(&mut unknown).zip(0..))
            .map(|((state, unknown), row)| {
                let request = state.sample_request(row, unknown.map(|_| row), &mut edits);
                if let Some(token) = unknown.take() {
                    state.accept(token);
                }
                request
            })
            .collect();
        let (found, top) = probe
            .run(&logits, &requests, &edits)
            .expect("sound requests");
        for (i, found) in found.iter().enumerate() {
            let row = &mut logits[i * VOCAB..][..VOCAB];
            let sampled = sampler.sample(row, &mut states[i]).expect("sound logits");
            assert_eq!(found.token, Ok(sampled.token), "{:?}", states[i].params());
            unknown[i] = Some(sampled.token);
            let Some(want) = sampled.logprobs else {
                assert_eq!(found.top, 0);
                continue;
            };
            let top = &top[found.first_top as usize..][..found.top as usize];
            let same = top.iter().map(|t| t.0).eq(want.top.iter().map(|t| t.0));
            assert!(same, "{top:?}, {:?} expected", want.top);
            let pairs = top.iter().zip(&want.top).map(|(a, b)| (a.1, b.1));
            for (got, want) in pairs.chain([(found.logprob, want.logprob)]) {
                assert!(
                    (got - want).abs() < 2e-6 * want.abs().max(1.0),
                    "{got}, {want} expected"
                );
            }
        }
    }
}
