//! AutoAWQ's `gemm`.

use ebb_kernels::model::{LayerTensor, TensorName, WeightSource};
use safetensors::Dtype;
use serde_json::{Value, json};

use super::{Checkpoint, Layer, Packed, f16s, f32s, is_inner, part, words};
use crate::hf_builder::Stored;
use crate::packed::rows;

/// As AutoAWQ's `WQLinear_GEMM.from_linear` packs: output `8w + order[i]` in bits 4i of word w.
fn packed_outputs(outputs: usize, code: impl Fn(usize) -> usize) -> Vec<u32> {
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    let word = |w: usize| {
        let codes = order.iter().enumerate();
        codes.fold(0, |word, (i, output)| {
            word | (code(8 * w + output) as u32) << (4 * i)
        })
    };
    (0..outputs / 8).map(word).collect()
}

fn pack(layer: &Layer, group: usize, with_zeros: bool) -> Packed {
    let mut packed = pack_with(layer, group, with_zeros, |at| layer.scale(at));
    let Stored(_, dtype, _, bytes) = &mut packed.parts[1];
    let (numbers, _) = bytes.as_chunks();
    *bytes = f16s(numbers.iter().map(|number| f32::from_le_bytes(*number)));
    *dtype = Dtype::F16;
    packed
}

/// With scales in F32.
fn pack_with(
    layer: &Layer,
    group: usize,
    with_zeros: bool,
    scale: impl Fn(usize) -> f32,
) -> Packed {
    let Layer { rows, columns, .. } = *layer;
    let groups = columns / group;
    let code = |row, column| layer.pick("code", row * columns + column, 16);
    let zero = |row, group| match with_zeros {
        true => layer.pick("zero", row * groups + group, 16),
        false => 8,
    };
    let scale = |row, group| scale(row * groups + group);
    let codes = (0..columns).flat_map(|column| packed_outputs(rows, |row| code(row, column)));
    let zeros = (0..groups).flat_map(|group| packed_outputs(rows, |row| zero(row, group)));
    let places = (0..groups).flat_map(|group| (0..rows).map(move |row| (row, group)));
    let scales = places.map(|(row, group)| scale(row, group));
    let mut parts = vec![
        part("qweight", Dtype::I32, &[columns, rows / 8], words(codes)),
        part("scales", Dtype::F32, &[groups, rows], f32s(scales)),
    ];
    if with_zeros {
        parts.push(part(
            "qzeros",
            Dtype::I32,
            &[groups, rows / 8],
            words(zeros),
        ));
    }
    let weights = layer.each(|row, column| {
        let at = column / group;
        (code(row, column) as f32 - zero(row, at) as f32) * scale(row, at)
    });
    Packed { parts, weights }
}

pub(super) fn plain(layer: &Layer) -> Packed {
    pack(layer, 16, true)
}

fn settings() -> Value {
    json!({
        "quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": true,
        "version": "GEMM", "modules_to_not_convert": null,
    })
}

fn checkpoint() -> Checkpoint {
    Checkpoint::new(settings(), is_inner, plain)
}

#[test]
fn words_hold_eight_outputs_in_their_order() {
    let mut checkpoint = checkpoint();
    let notes = checkpoint.assert_dequantised().notes;
    assert!(notes[0].contains("quantised (awq)"), "{notes:?}");
    // Codes and scales of a layer in different files.
    checkpoint.files.shards = 3;
    checkpoint.assert_dequantised();
}

#[test]
fn a_group_may_be_a_row_and_zeros_may_be_the_middle() {
    let settings = json!({
        "quant_method": "awq", "w_bit": 4, "q_group_size": -1, "zero_point": false,
    });
    let rows = |layer: &Layer| pack(layer, layer.columns, false);
    Checkpoint::new(settings, is_inner, rows).assert_dequantised();
}

/// A word by hand: its nibbles from the lowest on are outputs 0, 2, 4, 6, 1, 3, 5 and 7.
#[test]
fn nibbles_are_even_outputs_and_then_odd_ones() {
    let mut checkpoint = checkpoint();
    let name = "model.layers.1.mlp.down_proj.qweight";
    checkpoint.tensor(name).3[..4].copy_from_slice(&[0x10, 0x32, 0x54, 0x76]);
    let model = checkpoint.files.open().expect("a valid model");
    let name = TensorName::Layer(1, LayerTensor::Down);
    let format = model.weights().packed(name).expect("a format");
    let packed = rows(&model.weights(), name, format.expect("packed"), (0, 8)).expect("rows");
    let first_inputs = [0, 1, 2, 3, 4, 5, 6, 7].map(|row| packed.codes(row)[0]);
    assert_eq!(first_inputs, [0, 4, 1, 5, 2, 6, 3, 7]);
}

/// `(code − zero) · scale` and `code · scale − zero · scale` round otherwise in f32 then.
#[test]
fn scales_may_have_all_bits_of_f32() {
    let fine = |layer: &Layer| {
        let scale = |at| (1 + layer.pick("fine", at, 1 << 23)) as f32 / 4e9;
        pack_with(layer, 16, true, scale)
    };
    Checkpoint::new(settings(), is_inner, fine).assert_dequantised_within(1);
}

#[test]
fn the_output_projection_and_the_embedding_may_be_quantised() {
    let all = |module: &str| is_inner(module) || module == "lm_head";
    Checkpoint::new(settings(), all, plain).assert_dequantised();
}

#[test]
fn modules_to_not_convert_are_parts_of_names() {
    let named = json!(["mlp.down", "layers.1.self_attn"]);
    let mut left_out = settings();
    left_out["modules_to_not_convert"] = named.clone();
    let which = |module: &str| {
        is_inner(module) && !module.contains("mlp.down") && !module.contains("layers.1.self_attn")
    };
    Checkpoint::new(left_out, which, plain).assert_dequantised();
    let found = checkpoint().refused_with("modules_to_not_convert", named);
    assert!(
        found.ends_with("`quantization_config.modules_to_not_convert` says that it is not"),
        "{found}"
    );
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let with = |key: &str, value: Value| checkpoint().refused_with(key, value);
    assert_eq!(
        with("bits", json!(3)),
        "`quantization_config.bits` is 3, which is not supported; supported: 4"
    );
    assert_eq!(
        with("version", json!("gemv")),
        "`quantization_config.version` is \"gemv\", which is not supported; supported: gemm"
    );
    assert_eq!(
        with("group_size", json!(24)),
        "`group_size` is 24; expected a divisor of 32, the inputs of \
         `model.layers.0.self_attn.q_proj.weight`"
    );
    assert_eq!(
        with("group_size", json!(0)),
        "`quantization_config.group_size` is 0; expected a positive whole number, or -1"
    );
    assert!(with("group_size", json!(32)).contains("q_proj.scales` has shape [2, 64]"));
    assert_eq!(
        with("zero_point", json!(false)),
        "tensor `model.layers.0.self_attn.q_proj.qzeros` has zeros, but `quantization_config` says \
         that codes have none"
    );
    for part in ["qzeros", "scales"] {
        let name = format!("model.layers.0.mlp.gate_proj.{part}");
        let found = checkpoint().refused(|it| it.remove(&name));
        assert!(
            found.starts_with(&format!("tensor `{name}` is missing")),
            "{found}"
        );
    }
    let found = checkpoint().refused(|it| {
        it.tensor("model.layers.0.mlp.gate_proj.qweight").2 = vec![8, 32];
    });
    assert!(
        found.contains("gate_proj.qweight` has shape [8, 32]"),
        "{found}"
    );
}
