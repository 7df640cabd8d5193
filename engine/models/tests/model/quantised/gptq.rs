//! GPTQ's two versions, four and eight bits, with and without an order of inputs.

use ebb_kernels::model::{LayerTensor, TensorName, WeightSource};
use ebb_kernels::weight_formats::{Codes, Quantisation, WeightFormat};
use safetensors::Dtype;
use serde_json::{Value, json};

use super::{Checkpoint, Layer, Packed, f16s, is_inner, part, words};
use crate::hf_builder::hf_name;
use crate::packed::{assert_packed, rows};

/// How a layer is packed.
#[derive(Clone, Copy)]
struct Layout {
    bits: usize,
    group: usize,
    less_one: bool,
    by_activation: bool,
}

const PLAIN: Layout = Layout {
    bits: 4,
    group: 16,
    less_one: true,
    by_activation: false,
};

/// Codes in words of 32 bits, the first in the lowest bits.
fn packed(bits: usize, codes: &[usize]) -> u32 {
    let places = codes.iter().enumerate();
    places.fold(0, |word, (place, code)| {
        word | (*code as u32) << (place * bits)
    })
}

fn pack(layer: &Layer, layout: Layout) -> Packed {
    let Layer { rows, columns, .. } = *layer;
    let Layout { bits, group, .. } = layout;
    let (each, groups, codes) = (32 / bits, columns.div_ceil(group), 1 << bits);
    let code = |row: usize, column: usize| layer.pick("code", row * columns + column, codes);
    let zero = |row: usize, group: usize| layer.pick("zero", row * groups + group, codes);
    let scale = |row, group| layer.scale(row * groups + group);
    // A permutation, so that each group has as many inputs as it should.
    let order = |column: usize| match layout.by_activation {
        true => (column * 7 + 3) % columns / group,
        false => column / group,
    };
    let mut qweight = Vec::new();
    for line in 0..columns / each {
        for row in 0..rows {
            let inputs = (0..each).map(|place| code(row, line * each + place));
            qweight.push(packed(bits, &inputs.collect::<Vec<_>>()));
        }
    }
    // AutoGPTQ subtracts a one from each place of a word, and what borrows borrows.
    let ones = packed(bits, &vec![1; each]);
    let mut qzeros = Vec::new();
    for group in 0..groups {
        for word in 0..rows / each {
            let zeros = (0..each).map(|place| zero(word * each + place, group));
            let zeros = packed(bits, &zeros.collect::<Vec<_>>());
            qzeros.push(zeros.wrapping_sub(if layout.less_one { ones } else { 0 }));
        }
    }
    let scales = (0..groups).flat_map(|group| (0..rows).map(move |row| scale(row, group)));
    let index = words((0..columns).map(|column| order(column) as u32));
    let parts = vec![
        part(
            "qweight",
            Dtype::I32,
            &[columns / each, rows],
            words(qweight),
        ),
        part("qzeros", Dtype::I32, &[groups, rows / each], words(qzeros)),
        part("scales", Dtype::F16, &[groups, rows], f16s(scales)),
        part("g_idx", Dtype::I32, &[columns], index),
    ];
    let weights = layer.each(|row, column| {
        let group = order(column);
        (code(row, column) as f32 - zero(row, group) as f32) * scale(row, group)
    });
    Packed { parts, weights }
}

pub(super) fn plain(layer: &Layer) -> Packed {
    pack(layer, PLAIN)
}

fn settings() -> Value {
    json!({
        "quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": false, "sym": false,
        "damp_percent": 0.1, "true_sequential": true, "dataset": "c4",
    })
}

fn checkpoint() -> Checkpoint {
    Checkpoint::new(settings(), is_inner, plain)
}

#[test]
fn zeros_of_the_first_version_are_one_less() {
    checkpoint().assert_dequantised();
    let mut second = settings();
    second["checkpoint_format"] = json!("gptq_v2");
    let layout = Layout {
        less_one: false,
        ..PLAIN
    };
    Checkpoint::new(second, is_inner, |layer| pack(layer, layout)).assert_dequantised();
}

/// A word by hand: its nibbles from the lowest on are neighbouring inputs of an output.
#[test]
fn nibbles_are_inputs() {
    let mut checkpoint = checkpoint();
    let name = "model.layers.1.mlp.down_proj.qweight";
    checkpoint.tensor(name).3[..4].copy_from_slice(&[0x10, 0x32, 0x54, 0x76]);
    let model = checkpoint.files.open().expect("a valid model");
    let name = TensorName::Layer(1, LayerTensor::Down);
    let format = model.weights().packed(name).expect("a format");
    let packed = rows(&model.weights(), name, format.expect("packed"), (0, 1)).expect("rows");
    assert_eq!(packed.codes(0)[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A word whose places have the zeros 0, 1, 15, 8, 0, 0, 3 and 7, less a one each.
#[test]
fn a_zero_of_0_borrows_from_its_neighbour() {
    let mut checkpoint = checkpoint();
    let module = "model.layers.0.mlp.gate_proj";
    let word = 0x7300_8F10_u32.wrapping_sub(0x1111_1111);
    assert_eq!(word, 0x61EF_7DFF);
    let name = format!("{module}.qzeros");
    checkpoint.tensor(&name).3[..4].copy_from_slice(&word.to_le_bytes());
    let model = checkpoint.files.open().expect("a valid model");
    let name = TensorName::Layer(0, LayerTensor::Gate);
    let format = model.weights().packed(name).expect("a format");
    let packed = rows(&model.weights(), name, format.expect("packed"), (0, 8)).expect("rows");
    for (row, zero) in [0f32, 1.0, 15.0, 8.0, 0.0, 0.0, 3.0, 7.0]
        .iter()
        .enumerate()
    {
        assert_eq!(
            packed.offsets(row)[0],
            -zero * packed.scales(row)[0],
            "row {row}"
        );
    }
}

#[test]
fn zeros_that_are_all_the_same_are_no_offsets() {
    let mut checkpoint = checkpoint();
    for stored in &mut checkpoint.files.tensors {
        if stored.0.ends_with("qzeros") {
            stored.3.fill(0x77);
        }
    }
    let model = checkpoint.files.open().expect("a valid model");
    let name = TensorName::Layer(0, LayerTensor::Gate);
    let format = model.weights().packed(name).expect("a format");
    let expected = WeightFormat {
        codes: Codes::Int { bits: 4, zero: 8 },
        group: 16,
        has_offsets: false,
    };
    assert_eq!(format, Some(expected));
    assert_packed(
        &model.weights(),
        &checkpoint.spec,
        |name| {
            let module = hf_name(name);
            is_inner(module.trim_end_matches(".weight"))
        },
        0,
    );
}

#[test]
fn the_last_group_may_be_short() {
    let mut settings = settings();
    settings["group_size"] = json!(24);
    let layout = Layout { group: 24, ..PLAIN };
    Checkpoint::new(settings, is_inner, |layer| pack(layer, layout)).assert_dequantised();
}

#[test]
fn codes_without_settings_are_said_to_be_codes() {
    let found = checkpoint().refused(|it| it.files.config["quantization_config"] = Value::Null);
    assert_eq!(
        found,
        "tensor `model.layers.0.self_attn.q_proj.qweight` is quantised, but config.json has no \
         `quantization_config` that says how; add the settings that the checkpoint was made with"
    );
}

#[test]
fn codes_have_eight_bits_and_groups_are_rows() {
    let mut settings = settings();
    settings["bits"] = json!(8);
    settings["group_size"] = json!(-1);
    settings["lm_head"] = json!(true);
    let all = |module: &str| is_inner(module) || module == "lm_head";
    let rows = |layer: &Layer| {
        let layout = Layout {
            bits: 8,
            group: layer.columns,
            ..PLAIN
        };
        pack(layer, layout)
    };
    Checkpoint::new(settings, all, rows).assert_dequantised();
}

#[test]
fn inputs_are_in_the_groups_that_an_index_says() {
    let mut settings = settings();
    settings["desc_act"] = json!(true);
    let layout = Layout {
        by_activation: true,
        ..PLAIN
    };
    let new = || Checkpoint::new(settings.clone(), is_inner, |layer| pack(layer, layout));
    let mut model = new().assert_dequantised();
    assert!(!model.is_packed().expect("formats"));
    let again = model.quantise(Quantisation::Int4);
    assert!(again.unwrap_err().ends_with("quantised already"));
    let index = "model.layers.1.mlp.down_proj.g_idx";
    let found = new().refused(|it| it.remove(index));
    assert!(
        found.starts_with(&format!("tensor `{index}` is missing")),
        "{found}"
    );
    for (wrong, shown) in [(4u32, "4"), (u32::MAX, "-1"), (1 << 31, "-2147483648")] {
        let found =
            new().refused(|it| it.tensor(index).3[8..12].copy_from_slice(&wrong.to_le_bytes()));
        assert_eq!(
            found,
            format!("`a number in {index}` is {shown}; expected groups below 4")
        );
    }
}

#[test]
fn an_index_may_be_left_out_where_groups_are_in_order() {
    let mut checkpoint = checkpoint();
    checkpoint
        .files
        .tensors
        .retain(|stored| !stored.0.ends_with(".g_idx"));
    checkpoint.assert_dequantised();
}

#[test]
fn modules_may_have_settings_of_their_own() {
    let mut settings = settings();
    settings["dynamic"] = json!({
        "-:.*layers\\.0\\.mlp": {},
        "+:.*\\.down_proj$": { "bits": 8, "group_size": 32 },
        ".*\\.k_proj": { "desc_act": true },
    });
    let layout = |module: &str| {
        let mut layout = PLAIN;
        if module.ends_with("down_proj") {
            (layout.bits, layout.group) = (8, 32);
        }
        layout.by_activation = module.ends_with("k_proj");
        layout
    };
    let which = |module: &str| is_inner(module) && !module.contains("layers.0.mlp");
    let pack_own = |layer: &Layer| pack(layer, layout(&layer.module));
    let new = |which: &dyn Fn(&str) -> bool| Checkpoint::new(settings.clone(), which, pack_own);
    new(&which).assert_dequantised();
    let found = new(&is_inner).refused(|_| {});
    assert!(
        found.starts_with("tensor `model.layers.0.mlp.gate_proj.qweight` is quantised, but"),
        "{found}"
    );
}

#[test]
fn biases_that_are_zero_belong_to_no_layer() {
    let mut checkpoint = checkpoint();
    let bias = "model.layers.0.self_attn.o_proj.bias";
    let stored = part(bias, Dtype::F16, &[32], vec![0; 64]);
    checkpoint.files.tensors.push(stored);
    checkpoint.assert_dequantised();
    let found = checkpoint.refused(|it| it.tensor(bias).3[7] = 0x3C);
    assert!(
        found.starts_with(&format!("tensor `{bias}` is not part of")),
        "{found}"
    );
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let with = |key: &str, value: Value| checkpoint().refused_with(key, value);
    assert_eq!(
        with("bits", json!(3)),
        "`quantization_config.bits` is 3, which is not supported; supported: 4, 8"
    );
    assert!(with("bits", json!(8)).contains("q_proj.qweight` has shape [4, 64]"));
    assert_eq!(
        with("checkpoint_format", json!("marlin")),
        "`quantization_config.checkpoint_format` is \"marlin\", which is not supported; \
         supported: gptq, gptq_v2"
    );
    assert!(with("is_marlin_format", json!(true)).ends_with("supported: false"));
    assert!(with("group_size", json!(48)).starts_with("`group_size` is 48; expected a divisor"));
    assert!(with("desc_act", json!("no")).contains("expected true or false"));
    assert!(with("dynamic", json!({ "+:(": {} })).contains("regular expressions"));
    assert!(with("dynamic", json!({ ".*": { "bits": 2 } })).contains("bits` is 2"));
    let found = checkpoint().refused(|it| {
        let config = it.files.config["quantization_config"].as_object_mut();
        config.expect("an object").remove("bits");
    });
    assert_eq!(found, "`quantization_config.bits` is missing");
}
