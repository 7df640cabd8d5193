//! The model that gradients are taken of is the model that is served: its logits are the CPU
//! backend's.

use ebb_block_manager::BlockManager;
use ebb_lab::calibrate::Source;
use ebb_lab::eval::{Rows, Sequence};
use ebb_models::model::{LoadFormat, LoadedModel, ModelFiles};
use serde_json::Value;

use crate::tiny;

fn check(name: &str, change: fn(&mut Value)) {
    let dir = tiny::model(change);
    let files = ModelFiles::Directory(dir.path().to_owned());
    let model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
    let tokens: Vec<u32> = (0..200u32).map(|i| (i * 37 + i / 7) % 300).collect();
    let weights = model.weights();
    let source = Source {
        spec: &model.spec,
        weights: &weights,
    };
    let ours = ebb_gradients::logits(&model.spec, &source, &tokens, 2);
    let ours = ours.expect("logits");

    let pool = ebb_serving::pool(&model, 16 << 20, false).expect("a pool");
    let backend = ebb_serving::backend(&model, pool.frames, 2).expect("it loads");
    let mut sequence = Sequence::new(backend, BlockManager::new(pool).expect("blocks"));
    let mut served = Vec::new();
    for chunk in tokens.chunks(128) {
        served.extend_from_slice(sequence.feed(chunk, Rows::All).expect("it runs"));
    }
    assert_eq!(ours.len(), served.len());
    // The backend rounds K and V to bf16 and sums in another order.
    let square = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let off: Vec<f32> = ours.iter().zip(&served).map(|(a, b)| a - b).collect();
    let (error, scale) = (square(&off).sqrt(), square(&served).sqrt());
    assert!(error < 0.01 * scale, "{name}: off by {error} of {scale}");
    // Rows far apart are the model's answers, not a constant.
    assert!(
        square(&served[..300]) > 1e-3 * scale.powi(2) / 200.0,
        "{name}"
    );
}

#[test]
fn llama() {
    check("llama", tiny::llama);
}

#[test]
fn llama_with_scaled_rope_and_a_head_of_its_own() {
    check("llama3", tiny::llama3_scaled);
}

#[test]
fn yarn() {
    check("yarn", tiny::yarn);
}

#[test]
fn qwen2_with_biases() {
    check("qwen2", tiny::qwen2);
}

#[test]
fn qwen3_with_norms_of_heads() {
    check("qwen3", tiny::qwen3);
}
