//! PM-KVQ's key scales: folded into the weights they change nothing at 16 bit, and they spare
//! per-token keys what a loud channel costs.

use std::sync::Arc;

use ebb_block_manager::BlockManager;
use ebb_kernels::formats::FormatId;
use ebb_kernels::formats::rotation::Rotation;
use ebb_kernels::model::QkNorm;
use ebb_kernels::weight_formats::Quantisation;
use ebb_lab::calibrate::key_scales::search;
use ebb_lab::calibrate::{Gradients, GradientsError, Probes};
use ebb_lab::eval::{Rows, Sequence};
use ebb_models::model::{KeyScales, LoadFormat, LoadedModel, ModelFiles};
use ebb_serving::device::{BackendOptions, Device};
use serde_json::Value;

use crate::tiny;

type Change = fn(&mut Value);

const MODELS: [(&str, Change); 4] = [
    ("llama", tiny::llama),
    ("yarn", tiny::yarn),
    ("qwen2, with biases", tiny::qwen2),
    ("qwen3, with norms of heads", tiny::qwen3),
];

fn open(change: Change) -> LoadedModel {
    let dir = tiny::model(change);
    let files = ModelFiles::Directory(dir.path().to_owned());
    LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens")
}

/// Scales for the model's keys: `of(layer, head, pair)`.
fn scales(model: &LoadedModel, of: impl Fn(usize, usize, usize) -> f32) -> KeyScales {
    let spec = &model.spec;
    let heads = if spec.attention(0).qk_norm == QkNorm::PerHead {
        1
    } else {
        spec.heads().kv_heads
    };
    let pairs = spec.heads().head_dim / 2;
    let of_layer = |layer: usize| {
        (0..heads * pairs)
            .map(|i| of(layer, i / pairs, i % pairs))
            .collect()
    };
    KeyScales {
        format: "int2t".to_owned(),
        alpha: vec![0.5; spec.layers.len()],
        heads,
        scales: (0..spec.layers.len()).map(of_layer).collect(),
    }
}

fn tokens() -> Vec<u32> {
    (0..256u32).map(|i| (i * 37 + i / 7) % 300).collect()
}

/// Logits of every token, served at 16 bit.
fn served(model: &LoadedModel) -> Vec<f32> {
    served_as(model, BackendOptions::cpu(2))
}

/// The same, on a backend made like this.
fn served_as(model: &LoadedModel, options: BackendOptions) -> Vec<f32> {
    let pool = ebb_serving::pool(model, 16 << 20, false).expect("a pool");
    let backend = options.start(model, pool.frames).expect("it loads");
    let mut sequence = Sequence::new(backend, BlockManager::new(pool).expect("blocks"));
    let mut logits = Vec::new();
    for chunk in tokens().chunks(128) {
        logits.extend_from_slice(sequence.feed(chunk, Rows::All).expect("it runs"));
    }
    logits
}

fn norm(x: impl Iterator<Item = f32>) -> f64 {
    x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn folded_scales_change_nothing_at_16_bit() {
    for (name, change) in MODELS {
        let mut model = open(change);
        let plain = served(&model);
        // Powers of two, 1/8 to 8, shift exponents and no more: not a bit may differ.
        let exact = scales(&model, |l, h, p| {
            2f32.powi(((l * 5 + h * 3 + p * 7) % 7) as i32 - 3)
        });
        model
            .fold_key_scales(Some(Arc::new(exact)))
            .expect("they fit");
        assert!(served(&model) == plain, "{name}: powers of two");
        // Any others, here from 0.1 to 137, are rounded into the weights and the cached keys once
        // more: 2^-9 each time.
        let rounded = scales(&model, |l, h, p| {
            0.1 * 1.13f32.powi(((l * 11 + h * 17 + p * 23) % 60) as i32)
        });
        model
            .fold_key_scales(Some(Arc::new(rounded)))
            .expect("they fit");
        let folded = served(&model);
        let off = norm(folded.iter().zip(&plain).map(|(a, b)| a - b));
        let scale = norm(plain.iter().copied());
        assert!(
            off > 0.0 && off < 0.01 * scale,
            "{name}: off by {off} of {scale}"
        );
        model.fold_key_scales(None).expect("none always fit");
        assert!(served(&model) == plain, "{name}: without");
    }
}

/// Packed weights stay as they are: keys are scaled and values rotated in every step, which changes
/// nothing at 16 bit but roundings.
#[test]
fn packed_weights_are_scaled_and_rotated_in_every_step() {
    for (name, change) in MODELS {
        let mut model = open(change);
        model.quantise(Quantisation::Int4).expect("plain weights");
        let options = |v, expand_weights| BackendOptions {
            rotation: Rotation { k: false, v },
            expand_weights,
            ..BackendOptions::cpu(2)
        };
        let plain = served_as(&model, options(false, false));
        let scale = norm(plain.iter().copied());
        let off = |other: &[f32]| norm(other.iter().zip(&plain).map(|(a, b)| a - b)) / scale;
        // What activations of eight bits change.
        let expanded = off(&served_as(&model, options(false, true)));
        let rotated = off(&served_as(&model, options(true, false)));
        let scales = scales(&model, |l, h, p| {
            0.1 * 1.13f32.powi(((l * 11 + h * 17 + p * 23) % 60) as i32)
        });
        model
            .fold_key_scales(Some(Arc::new(scales)))
            .expect("they fit");
        let scaled = off(&served_as(&model, options(false, false)));
        let both = off(&served_as(&model, options(true, false)));
        let folded = off(&served_as(&model, options(true, true)));
        for (what, off) in [("rotated", rotated), ("scaled", scaled), ("both", both)] {
            assert!(off > 0.0 && off < 0.01, "{name}, {what}: off by {off}");
        }
        assert!(
            expanded > 0.0 && expanded < 0.05,
            "{name}: off by {expanded}"
        );
        assert!(folded > 0.0 && folded < 0.05, "{name}: off by {folded}");
        assert!(
            rotated != both && scaled != both,
            "{name}: {rotated} {scaled} {both}"
        );
    }
}

#[test]
fn scales_are_found_that_spare_per_token_keys_a_loud_channel() {
    for (name, change) in MODELS {
        let mut model = open(change);
        // The same function, with keys of pair 5 forty times as loud.
        let loud = scales(
            &model,
            |_, _, pair| if pair == 5 { 1.0 / 40.0 } else { 1.0 },
        );
        model
            .fold_key_scales(Some(Arc::new(loud)))
            .expect("they fit");
        let tokens = tokens();
        for format in [FormatId::Int4t, FormatId::Int2t] {
            let mut cores = Gradients::open(&Device::Cpu, &model, 2).expect("it opens");
            let found = search(&model.spec, &mut cores, format, &[&tokens], 1, 2);
            let found = found.expect("scales");
            assert_eq!(found.errors.len(), 3);
            for (layer, error) in found.errors.iter().enumerate() {
                assert!(*error < 0.3, "{name}, layer {layer}, {format}: {error}");
                let of_layer = &found.scales.scales[layer];
                let largest =
                    (0..of_layer.len()).max_by(|a, b| of_layer[*a].total_cmp(&of_layer[*b]));
                assert_eq!(largest.map(|i| i % 32), Some(5), "{name}, layer {layer}");
            }
            let fits = open(change).fold_key_scales(Some(Arc::new(found.scales)));
            assert_eq!(fits, Ok(()));
        }
    }
}

/// λ^(1/α) is the greatest key of all windows, those beside the searched ones included.
#[test]
fn the_greatest_keys_are_those_of_all_windows() {
    let mut model = open(tiny::llama);
    let loud = scales(&model, |_, _, pair| 1.0 / (1.0 + (pair % 9) as f32));
    model
        .fold_key_scales(Some(Arc::new(loud)))
        .expect("they fit");
    let windows: Vec<Vec<u32>> = (0..3u32)
        .map(|w| tokens().iter().map(|t| (t * 7 + w * 31) % 300).collect())
        .collect();
    let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
    let mut cores = Gradients::open(&Device::Cpu, &model, 2).expect("it opens");
    let heads = model.spec.heads();
    let pairs = heads.head_dim / 2;
    let mut greatest = vec![vec![0f32; heads.kv_heads * pairs]; 3];
    let mut of_first = greatest.clone();
    let mut look = |layer: usize, probes: &mut dyn Probes| -> Result<(), GradientsError> {
        for text in 0..probes.texts() {
            for (i, key) in probes.keys(text).iter().enumerate() {
                let (head, pair) = (i / (256 * heads.head_dim), i % pairs);
                let most = &mut greatest[layer][head * pairs + pair];
                *most = most.max(key.abs());
                if text == 0 {
                    of_first[layer][head * pairs + pair] = *most;
                }
            }
        }
        Ok(())
    };
    cores.attentions(&windows, 2, &mut look).expect("it runs");
    assert_ne!(greatest, of_first, "the other windows have greater keys");
    for searched in [1, 2, 3] {
        let found = search(
            &model.spec,
            &mut cores,
            FormatId::Int4t,
            &windows,
            searched,
            2,
        );
        let scales = found.expect("scales").scales;
        for (layer, alpha) in scales.alpha.iter().enumerate() {
            for (scale, most) in scales.scales[layer].iter().zip(&greatest[layer]) {
                let want = f64::from(*most).powf(*alpha);
                assert!(
                    (f64::from(*scale) / want - 1.0).abs() < 1e-5,
                    "{scale}, {want}"
                );
            }
        }
        assert!(
            scales.alpha.iter().any(|alpha| *alpha > 0.0),
            "{:?}",
            scales.alpha
        );
    }
}

#[test]
fn scales_of_other_keys_are_refused() {
    let refused = |change: Change, of: &dyn Fn(&mut KeyScales)| {
        let mut model = open(change);
        let mut scales = scales(&model, |_, _, _| 1.0);
        of(&mut scales);
        model.fold_key_scales(Some(Arc::new(scales))).unwrap_err()
    };
    let short = refused(tiny::llama, &|s| _ = s.scales[1].pop());
    assert!(short.contains("3 lists of 64 numbers"), "{short}");
    assert!(refused(tiny::llama, &|s| s.scales[2][7] = 0.0).contains("0.0001"));
    assert!(refused(tiny::llama, &|s| s.scales[2][7] = f32::NAN).contains("0.0001"));
    assert!(refused(tiny::llama, &|s| s.heads = 3).contains("1 or 2"));
    assert!(refused(tiny::llama, &|s| s.alpha[0] = 2.0).contains("exponents"));
    let own = refused(tiny::qwen3, &|s| {
        s.heads = 2;
        s.scales = vec![vec![1.0; 64]; 3];
    });
    assert!(own.contains("one for all heads"), "{own}");
}
