//! E4M3 codes with scales of every granularity.

use safetensors::Dtype;
use serde_json::{Value, json};

use super::{Checkpoint, Layer, Packed, bf16s, f32s, float_codes, is_inner, part};
use crate::hf_builder::HfBuilder;
use crate::tiny;

/// All codes but those that are not numbers.
fn code(layer: &Layer, at: usize) -> u8 {
    let code = layer.pick("code", at, 254);
    (if code < 127 { code } else { code + 1 }) as u8
}

/// A packed layer whose code at a row and column has the scale that `scale` says.
pub(super) fn pack(
    layer: &Layer,
    scales: super::Stored,
    scale: impl Fn(usize, usize) -> f32,
) -> Packed {
    let numbers = float_codes("E4M3");
    let codes: Vec<u8> = (0..layer.rows * layer.columns)
        .map(|at| code(layer, at))
        .collect();
    let weights = layer.each(|row, column| {
        let code = codes[row * layer.columns + column];
        numbers[usize::from(code)] * scale(row, column)
    });
    let shape = [layer.rows, layer.columns];
    Packed {
        parts: vec![part("weight", Dtype::F8_E4M3, &shape, codes), scales],
        weights,
    }
}

/// A scale that takes all of f32's bits.
fn fine(layer: &Layer, place: usize) -> f32 {
    (1 + layer.pick("fine", place, 1 << 23)) as f32 / 4e9
}

pub(super) fn per_tensor(layer: &Layer) -> Packed {
    let scales = part("weight_scale", Dtype::F32, &[], f32s([fine(layer, 0)]));
    pack(layer, scales, |_, _| fine(layer, 0))
}

pub(super) fn per_channel(layer: &Layer) -> Packed {
    let scales = bf16s((0..layer.rows).map(|row| layer.scale(row)));
    let scales = part("weight_scale", Dtype::BF16, &[layer.rows, 1], scales);
    pack(layer, scales, |row, _| layer.scale(row))
}

/// Blocks that do not divide the tensors.
const BLOCK: [usize; 2] = [24, 12];

fn per_block(layer: &Layer) -> Packed {
    let tiles = [
        layer.rows.div_ceil(BLOCK[0]),
        layer.columns.div_ceil(BLOCK[1]),
    ];
    let scales = f32s((0..tiles[0] * tiles[1]).map(|tile| fine(layer, tile)));
    let scales = part("weight_scale_inv", Dtype::F32, &tiles, scales);
    pack(layer, scales, |row, column| {
        fine(layer, row / BLOCK[0] * tiles[1] + column / BLOCK[1])
    })
}

fn per_block_power(layer: &Layer) -> Packed {
    let tiles = [
        layer.rows.div_ceil(BLOCK[0]),
        layer.columns.div_ceil(BLOCK[1]),
    ];
    let exponents: Vec<u8> = (0..tiles[0] * tiles[1])
        .map(|tile| 110 + layer.pick("exponent", tile, 20) as u8)
        .collect();
    let numbers = float_codes("E8M0");
    let scales = part(
        "weight_scale_inv",
        Dtype::F8_E8M0,
        &tiles,
        exponents.clone(),
    );
    pack(layer, scales, |row, column| {
        let tile = row / BLOCK[0] * tiles[1] + column / BLOCK[1];
        numbers[usize::from(exponents[tile])]
    })
}

fn settings() -> Value {
    json!({
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "modules_to_not_convert": ["lm_head", "model.embed_tokens"],
    })
}

#[test]
fn a_scale_is_for_a_tensor_a_channel_or_a_block() {
    Checkpoint::new(settings(), is_inner, per_tensor).assert_dequantised();
    Checkpoint::new(settings(), is_inner, per_channel).assert_dequantised();
    let mut blocks = settings();
    blocks["weight_block_size"] = json!(BLOCK);
    blocks["fmt"] = json!("e4m3");
    Checkpoint::new(blocks.clone(), is_inner, per_block).assert_dequantised();
    Checkpoint::new(blocks, is_inner, per_block_power).assert_dequantised();
    let fbgemm = json!({ "quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0 });
    Checkpoint::new(fbgemm, is_inner, per_channel).assert_dequantised();
}

#[test]
fn scales_of_activations_and_of_a_kv_cache_are_not_used() {
    let fixed = json!({
        "quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"],
    });
    let mut checkpoint = Checkpoint::new(fixed, is_inner, |layer| {
        let mut packed = per_tensor(layer);
        let input = part("input_scale", Dtype::F32, &[], f32s([0.5]));
        packed.parts.push(input);
        packed
    });
    let notes = checkpoint.assert_dequantised().notes;
    assert_eq!(
        notes,
        [
            "the weights are quantised (fp8); they are kept packed where the device computes on \
          that, and expanded to bf16 elsewhere"
        ]
    );
    let attention = "model.layers.0.self_attn";
    for name in [
        format!("{attention}.k_scale"),
        format!("{attention}.v_proj.v_scale"),
    ] {
        let scale = part(&name, Dtype::F32, &[1], f32s([0.5]));
        checkpoint.files.tensors.push(scale);
    }
    let notes = checkpoint.assert_dequantised().notes;
    assert!(
        notes.len() == 2 && notes[1].starts_with("the checkpoint's scales for a KV cache"),
        "{notes:?}"
    );
}

/// MXFP8.
pub(super) fn per_group_power(layer: &Layer) -> Packed {
    let groups = layer.columns / 32;
    let exponents: Vec<u8> = (0..layer.rows * groups)
        .map(|at| 110 + layer.pick("exponent", at, 20) as u8)
        .collect();
    let numbers = float_codes("E8M0");
    let shape = [layer.rows, groups];
    let scales = part("weight_scale", Dtype::U8, &shape, exponents.clone());
    pack(layer, scales, |row, column| {
        numbers[usize::from(exponents[row * groups + column / 32])]
    })
}

/// Blocks of 128 × 128, in the four dimensions that Model Optimizer gives them.
fn per_large_block(layer: &Layer) -> Packed {
    let scales = f32s([fine(layer, 0)]);
    let scales = part("weight_scale", Dtype::F32, &[1, 1, 1, 1], scales);
    pack(layer, scales, |_, _| fine(layer, 0))
}

#[test]
fn a_kv_cache_alone_may_have_scales() {
    let settings = json!({
        "quant_method": "modelopt", "quant_algo": null, "kv_cache_quant_algo": "FP8",
    });
    let mut checkpoint = Checkpoint::new(settings, is_inner, per_tensor);
    let found = checkpoint.files.refusal().1;
    assert!(
        found.ends_with("says of no weights that they are"),
        "{found}"
    );
    let spec = checkpoint.spec.clone();
    let plain = HfBuilder::new(tiny::family("llama"), &spec, Dtype::BF16).tensors;
    checkpoint.files.tensors = plain;
    checkpoint.weights.clear();
    let name = "model.layers.1.self_attn.k_proj.k_scale";
    let scale = part(name, Dtype::F32, &[], f32s([0.5]));
    checkpoint.files.tensors.push(scale);
    let notes = checkpoint.assert_dequantised().notes;
    assert!(
        notes.len() == 1 && notes[0].contains("KV cache"),
        "{notes:?}"
    );
}

#[test]
fn model_optimizer_names_its_granularities() {
    for (algorithm, pack) in [
        ("FP8", per_tensor as fn(&Layer) -> Packed),
        ("FP8_PER_CHANNEL_PER_TOKEN", per_channel),
        ("FP8_PB_WO", per_large_block),
        ("MXFP8", per_group_power),
    ] {
        let settings = json!({
            "quant_method": "modelopt",
            "quant_algo": algorithm,
            "ignore": ["lm_head", "model.visual*"],
            "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        });
        let notes = Checkpoint::new(settings, is_inner, pack)
            .assert_dequantised()
            .notes;
        assert!(notes[1].contains("KV cache"), "{notes:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let new = || Checkpoint::new(settings(), is_inner, per_tensor);
    let up = "model.layers.1.mlp.up_proj";
    let scale = &format!("{up}.weight_scale");
    assert_eq!(
        new().refused(|it| it.remove(scale)),
        format!("tensor `{scale}` is missing; the file is incomplete or its configuration wrong")
    );
    let found = new().refused(|it| {
        *it.tensor(scale) = part(scale, Dtype::F32, &[3], f32s([1.0; 3]));
    });
    assert!(
        found.starts_with(&format!("tensor `{scale}` has shape [3]")),
        "{found}"
    );
    let found = new().refused(|it| {
        *it.tensor(scale) = part(scale, Dtype::I8, &[1], vec![1]);
    });
    assert_eq!(
        found,
        format!(
            "`{scale}.dtype` is I8, which is not supported; supported: F32, F16, BF16, F8_E8M0, \
             U8"
        )
    );
    let found = new().refused(|it| {
        it.tensor(&format!("{up}.weight")).1 = Dtype::F8_E5M2;
    });
    assert!(
        found.contains("is F8_E5M2, which is not supported"),
        "{found}"
    );
    let found = new().refused_with("weight_block_size", json!([16, 16]));
    assert!(
        found.contains("has shape []; the configuration calls for ["),
        "{found}"
    );
    let found = new().refused_with("modules_to_not_convert", json!([up]));
    assert_eq!(
        found,
        format!(
            "tensor `{up}.weight` is quantised, but `quantization_config.modules_to_not_convert` \
             says that it is not"
        )
    );
    let found = new().refused(|it| {
        it.files
            .config
            .as_object_mut()
            .expect("an object")
            .remove("quantization_config");
    });
    assert!(
        found.contains("is F8_E4M3, which is not supported"),
        "{found}"
    );
}
