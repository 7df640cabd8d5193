//! Attention with other keys, against the definition and against the backward pass.

mod common;

use common::{Tiny, tokens};
use ebb_gradients::{Attention, LayerGradients, attentions, gradients};
use ebb_kernels::model::LayerTensor;

fn caches(tiny: &Tiny, tokens: &[u32], stride: usize) -> Vec<LayerGradients> {
    let mut found = Vec::new();
    let mut visit = |_: usize, layer| found.push(layer);
    gradients(&tiny.model, tiny, tokens, stride, 2, &mut visit).expect("gradients");
    found.reverse();
    found
}

#[test]
fn keys_are_those_of_the_backward_pass_and_keys_without_content_give_means() {
    for tiny in [Tiny::llama(), Tiny::qwen2(), Tiny::qwen3()] {
        let texts = [tokens(24, &tiny.model), tokens(9, &tiny.model)];
        let expected = texts.each_ref().map(|text| caches(&tiny, text, 3));
        let model = &tiny.model;
        let mut layers = 0;
        let mut visit = |layer: usize, probes: &[Attention<'_>]| {
            assert_eq!((layer, probes.len()), (layers, 2));
            layers += 1;
            for ((probe, expected), text) in probes.iter().zip(&expected).zip(&texts) {
                let cached = &expected[layer];
                assert_eq!(probe.keys(), cached.k.values, "{}", tiny.name);
                // Equal scores: attention is the mean of the values so far.
                let zeros = vec![0.0; probe.keys().len()];
                let got = probe.output(&zeros).expect("an output");
                let wanted = means(&tiny, layer, &cached.v.values, text.len());
                for (a, b) in got.iter().zip(&wanted) {
                    assert!((f64::from(*a) - b).abs() < 1e-4, "{}: {a} {b}", tiny.name);
                }
                assert!(probe.output(probe.keys()).expect("an output") != got);
                assert!(probe.output(&zeros[1..]).is_err());
            }
        };
        let texts = texts.each_ref().map(Vec::as_slice);
        attentions(model, &tiny, &texts, 3, 2, &mut visit).expect("attention");
        assert_eq!(layers, model.layers.len());
    }
    let tiny = Tiny::llama();
    assert!(attentions(&tiny.model, &tiny, &[&[]], 1, 2, &mut |_, _| ()).is_err());
}

/// W_o over the means of `[kv_heads][tokens][head_dim]` values, `[tokens][hidden]`.
fn means(tiny: &Tiny, layer: usize, values: &[f32], tokens: usize) -> Vec<f64> {
    let model = &tiny.model;
    let heads = model.heads();
    let (dim, group) = (heads.head_dim, heads.group());
    let mean = |token: usize, head: usize, channel: usize| {
        let of = |t: usize| f64::from(values[((head / group) * tokens + t) * dim + channel]);
        (0..=token).map(of).sum::<f64>() / (token + 1) as f64
    };
    let width = heads.q_width();
    let mut all = Vec::new();
    for token in 0..tokens {
        for row in tiny.of(layer, LayerTensor::O).chunks_exact(width) {
            let terms = row.iter().enumerate();
            all.push(
                terms
                    .map(|(i, w)| f64::from(*w) * mean(token, i / dim, i % dim))
                    .sum(),
            );
        }
    }
    all
}
