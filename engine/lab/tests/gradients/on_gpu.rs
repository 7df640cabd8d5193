//! Gradients by the CUDA backend's kernels, which an emulator runs, against candle's autograd.

use ebb_gradients::LayerGradients;
use ebb_lab::calibrate::{Gradients, GradientsError, Probes};
use ebb_models::model::{LoadFormat, LoadedModel, ModelFiles};
use ebb_serving::device::{Device, DeviceChoice};
use serde_json::Value;

use crate::tiny;

fn open(change: fn(&mut Value)) -> LoadedModel {
    let dir = tiny::model(change);
    let files = ModelFiles::Directory(dir.path().to_owned());
    LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens")
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + i / 7) % 300).collect()
}

fn devices() -> [Device; 2] {
    [DeviceChoice::Cpu, DeviceChoice::Cuda(0)].map(|d| Device::open(d).expect("the device"))
}

/// The loss, and every layer's gradients in the order in which they came.
fn all(
    device: &Device,
    model: &LoadedModel,
    text: &[u32],
    stride: usize,
) -> (f64, Vec<(usize, LayerGradients)>) {
    let mut gradients = Gradients::open(device, model, 2).expect("it opens");
    let mut found = Vec::new();
    let mut visit = |layer, gradients| found.push((layer, gradients));
    let loss = gradients.run(text, stride, &mut visit).expect("gradients");
    (loss, found)
}

/// Norm of the difference over that of the second.
fn off(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut b.iter().map(|b| f64::from(*b)))
}

fn check(name: &str, change: fn(&mut Value), count: u32, stride: usize) {
    let model = open(change);
    let text = tokens(count);
    let [(loss, on_cores), (gpu_loss, on_gpu)] =
        devices().map(|device| all(&device, &model, &text, stride));
    assert!((loss - gpu_loss).abs() < 1e-5, "{name}: {loss} {gpu_loss}");
    assert_eq!(on_gpu.len(), model.spec.layers.len());
    for ((layer, a), (other, b)) in on_gpu.iter().zip(&on_cores) {
        assert_eq!(layer, other, "{name}");
        for (what, a, b) in [
            ("dL/dW_k", &a.w_k, &b.w_k),
            ("dL/dW_v", &a.w_v, &b.w_v),
            ("K", &a.k.values, &b.k.values),
            ("dL/dK", &a.k.gradients, &b.k.gradients),
            ("V", &a.v.values, &b.v.values),
            ("dL/dV", &a.v.gradients, &b.v.gradients),
        ] {
            let off = off(a, b);
            assert!(off < 1e-4, "{name}, layer {layer}, {what}: off by {off}");
        }
    }
}

#[test]
fn llama_over_several_chunks_of_rows() {
    check("llama", tiny::llama, 530, 1);
}

#[test]
fn llama_with_scaled_rope_and_a_head_of_its_own() {
    check("llama3", tiny::llama3_scaled, 90, 4);
}

#[test]
fn yarn_scales_queries_and_keys() {
    check("yarn", tiny::yarn, 90, 1);
}

#[test]
fn qwen2_with_biases() {
    check("qwen2", tiny::qwen2, 90, 1);
}

#[test]
fn qwen3_with_norms_of_heads() {
    check("qwen3", tiny::qwen3, 90, 1);
}

#[test]
fn a_text_of_one_token_is_refused() {
    let model = open(tiny::llama);
    for device in devices() {
        let mut gradients = Gradients::open(&device, &model, 1).expect("it opens");
        let error = gradients.run(&[1], 1, &mut |_, _| {}).expect_err("refused");
        assert!(error.to_string().contains("2 tokens"), "{error}");
    }
}

/// A layer's keys of two texts, and attention over them and over others.
type Probed = (Vec<f32>, Vec<f32>, Vec<f32>);

#[test]
fn attention_can_be_computed_again_with_other_keys() {
    for (name, change) in [
        ("llama", tiny::llama as fn(&mut Value)),
        ("qwen3", tiny::qwen3),
    ] {
        let model = open(change);
        let (long, short) = (tokens(100), tokens(33));
        let [on_cores, on_gpu] = devices().map(|device| {
            let mut gradients = Gradients::open(&device, &model, 2).expect("it opens");
            let mut found: Vec<Probed> = Vec::new();
            let mut visit = |layer: usize, probes: &mut dyn Probes| {
                assert_eq!((layer, probes.texts()), (found.len() / 2, 2));
                for text in 0..2 {
                    let keys = probes.keys(text).to_vec();
                    let own = probes.output(text, &keys)?;
                    let other: Vec<f32> = keys.iter().map(|k| k * 0.5 + 0.1).collect();
                    found.push((keys, own, probes.output(text, &other)?));
                }
                Ok::<(), GradientsError>(())
            };
            let run = gradients.attentions(&[&long, &short], 3, &mut visit);
            run.expect("attention");
            found
        });
        assert_eq!(on_gpu.len(), 2 * model.spec.layers.len());
        for (i, (a, b)) in on_gpu.iter().zip(&on_cores).enumerate() {
            for (what, a, b) in [
                ("keys", &a.0, &b.0),
                ("own", &a.1, &b.1),
                ("other", &a.2, &b.2),
            ] {
                let off = off(a, b);
                assert!(off < 1e-4, "{name}, {i}, {what}: off by {off}");
            }
            assert!(
                off(&a.1, &a.2) > 1e-3,
                "{name}: other keys, other attention"
            );
        }
    }
}

/// What `visit` returns ends the run, and is what comes back.
#[test]
fn a_visitor_can_end_the_run() {
    let model = open(tiny::llama);
    for device in devices() {
        let mut gradients = Gradients::open(&device, &model, 1).expect("it opens");
        let mut seen = 0;
        let mut visit = |_: usize, _: &mut dyn Probes| {
            seen += 1;
            Err(gradients_error())
        };
        let text = tokens(20);
        let run = gradients.attentions(&[&text], 1, &mut visit);
        assert!(run.expect_err("ended").to_string().contains("2 tokens"));
        assert_eq!(seen, 1);
    }
}

fn gradients_error() -> GradientsError {
    let model = open(tiny::llama);
    let mut gradients = Gradients::open(&Device::Cpu, &model, 1).expect("it opens");
    gradients.run(&[1], 1, &mut |_, _| {}).expect_err("refused")
}
