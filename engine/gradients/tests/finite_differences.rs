//! Gradients against finite differences of the loss, which is computed from the logits alone.

mod common;

use common::{Tiny, loss, tokens};
use ebb_gradients::{LayerGradients, gradients};
use ebb_kernels::model::LayerTensor;

const THREADS: usize = 2;

fn all(tiny: &Tiny, tokens: &[u32], stride: usize) -> (f64, Vec<LayerGradients>) {
    let mut found = vec![None; tiny.model.layers.len()];
    let mut visit = |layer: usize, gradients| found[layer] = Some(gradients);
    let loss = gradients(&tiny.model, tiny, tokens, stride, THREADS, &mut visit);
    let found = found
        .into_iter()
        .map(|g| g.expect("every layer is visited"));
    (loss.expect("gradients"), found.collect())
}

/// dL along the gradient's own direction is its L2 norm; that of a single large entry is the entry.
fn check(
    what: &str,
    tiny: &Tiny,
    tokens: &[u32],
    gradient: &[f32],
    of: impl Fn(&mut Tiny) -> &mut Vec<f32>,
) {
    let norm = gradient
        .iter()
        .map(|g| f64::from(*g).powi(2))
        .sum::<f64>()
        .sqrt();
    assert!(norm > 1e-3, "{what}: nothing to compare, {norm}");
    let largest = (0..gradient.len())
        .max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs()))
        .expect("a gradient");
    let along: Vec<f32> = gradient
        .iter()
        .map(|g| (f64::from(*g) / norm) as f32)
        .collect();
    let mut single = vec![0.0; gradient.len()];
    single[largest] = 1.0;
    for (direction, expected) in [(along, norm), (single, f64::from(gradient[largest]))] {
        let step = 0.02;
        let moved = |by: f32| {
            let mut tiny = tiny.clone();
            let weights = of(&mut tiny);
            assert_eq!(weights.len(), direction.len());
            weights
                .iter_mut()
                .zip(&direction)
                .for_each(|(w, d)| *w += by * d);
            loss(&tiny, tokens)
        };
        let slope = (moved(step) - moved(-step)) / f64::from(2.0 * step);
        assert!(
            (slope - expected).abs() < 0.01 * norm,
            "{what}: the loss rises by {slope}, the gradient says {expected} of {norm}"
        );
    }
}

#[test]
fn gradients_of_key_and_value_weights_are_slopes_of_the_loss() {
    let all_models = [
        Tiny::llama(),
        Tiny::qwen2(),
        Tiny::qwen3(),
        Tiny::olmo2(),
        Tiny::partly_rotated(),
    ];
    for tiny in all_models {
        let tokens = tokens(24, &tiny.model);
        let (found_loss, layers) = all(&tiny, &tokens, 1);
        assert!((found_loss - loss(&tiny, &tokens)).abs() < 1e-5);
        for (index, found) in layers.iter().enumerate() {
            let name = |side: &str| format!("{}, layer {index}, W_{side}", tiny.name);
            check(&name("k"), &tiny, &tokens, &found.w_k, |t| {
                t.of_mut(index, LayerTensor::K)
            });
            check(&name("v"), &tiny, &tokens, &found.w_v, |t| {
                t.of_mut(index, LayerTensor::V)
            });
        }
    }
}

/// A text of several chunks of query rows: what a late row's loss says of early keys must arrive
/// there.
#[test]
fn gradients_of_a_long_text_are_slopes_of_the_loss() {
    let tiny = Tiny::llama();
    let tokens = tokens(1100, &tiny.model);
    let (_, layers) = all(&tiny, &tokens, 1);
    check("W_k of 1100", &tiny, &tokens, &layers[0].w_k, |t| {
        t.of_mut(0, LayerTensor::K)
    });
    check("W_v of 1100", &tiny, &tokens, &layers[0].w_v, |t| {
        t.of_mut(0, LayerTensor::V)
    });
}

/// A bias reaches every token's key and value alike: its slope is the sum of theirs, keys turned
/// back by their angles.
#[test]
fn gradients_of_keys_and_values_are_slopes_of_the_loss() {
    let tiny = Tiny::qwen2();
    let tokens = tokens(24, &tiny.model);
    let (_, layers) = all(&tiny, &tokens, 1);
    let (heads, count) = (tiny.model.heads(), tokens.len());
    let (dim, rope) = (heads.head_dim, &tiny.model.ropes[0]);
    for (index, found) in layers.iter().enumerate() {
        let mut sums = [
            vec![0f32; heads.kv_heads * dim],
            vec![0f32; heads.kv_heads * dim],
        ];
        for head in 0..heads.kv_heads {
            for token in 0..count {
                let at = (head * count + token) * dim;
                let (dk, dv) = (
                    &found.k.gradients[at..at + dim],
                    &found.v.gradients[at..at + dim],
                );
                for i in 0..dim / 2 {
                    let angle = token as f32 * rope.inv_freq[i];
                    let (cos, sin) = (angle.cos() * rope.scale, angle.sin() * rope.scale);
                    sums[0][head * dim + i] += dk[i] * cos + dk[i + dim / 2] * sin;
                    sums[0][head * dim + i + dim / 2] += dk[i + dim / 2] * cos - dk[i] * sin;
                }
                (0..dim).for_each(|i| sums[1][head * dim + i] += dv[i]);
            }
        }
        let biases = [LayerTensor::KBias, LayerTensor::VBias];
        let name = |side: &str| format!("layer {index}, {side}");
        check(&name("values"), &tiny, &tokens, &sums[1], |t| {
            t.of_mut(index, biases[1])
        });
        // A bias of the keys shifts all scores of a query by nearly the same: its slope is small,
        // not nothing.
        check(&name("keys"), &tiny, &tokens, &sums[0], |t| {
            t.of_mut(index, biases[0])
        });
    }
}

/// Twice the stride at half the frequencies is the same model.
#[test]
fn a_stride_multiplies_positions() {
    let tiny = Tiny::llama();
    let tokens = tokens(20, &tiny.model);
    let mut slow = tiny.clone();
    slow.model.ropes[0]
        .inv_freq
        .iter_mut()
        .for_each(|f| *f /= 2.0);
    let (one, whole) = all(&tiny, &tokens, 1);
    let (two, same) = all(&slow, &tokens, 2);
    assert_eq!(one, two);
    assert_eq!(whole, same);
    assert_ne!(one, all(&slow, &tokens, 1).0);
}

#[test]
fn a_text_of_one_token_is_refused() {
    let tiny = Tiny::llama();
    let error = gradients(&tiny.model, &tiny, &[1], 1, THREADS, &mut |_, _| {});
    assert!(error.unwrap_err().to_string().contains("2 tokens"));
}
