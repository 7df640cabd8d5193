//! E2M1 codes: MXFP4 and NVFP4, by three publishers.

use safetensors::Dtype;
use serde_json::{Value, json};

use super::{
    Checkpoint, Layer, Packed, compressed_tensors, f32s, float_codes, fp8, is_inner, part,
};

fn code(layer: &Layer, row: usize, column: usize) -> usize {
    layer.pick("code", row * layer.columns + column, 16)
}

/// Two columns a byte, the even one in the low half.
fn bytes(layer: &Layer) -> Vec<u8> {
    let pairs = layer.rows * layer.columns / 2;
    let byte = |pair: usize| {
        let (row, column) = (2 * pair / layer.columns, 2 * pair % layer.columns);
        code(layer, row, column) | code(layer, row, column + 1) << 4
    };
    (0..pairs).map(|pair| byte(pair) as u8).collect()
}

/// What E2M1 codes with these scales stand for.
fn weights(layer: &Layer, group: usize, scale: impl Fn(usize) -> f32) -> Vec<f32> {
    let numbers = float_codes("E2M1");
    let groups = layer.columns / group;
    layer.each(|row, column| {
        numbers[code(layer, row, column)] * scale(row * groups + column / group)
    })
}

/// A scale's code of eight bits: a power of two.
fn power(layer: &Layer, at: usize) -> u8 {
    // Also the least, whose values are below bf16's normal numbers.
    match layer.pick("power", at, 8) {
        0 => 0,
        _ => 100 + layer.pick("exponent", at, 40) as u8,
    }
}

/// A scale's code of eight bits: a number that is not negative.
fn e4m3(layer: &Layer, at: usize) -> u8 {
    layer.pick("e4m3", at, 127) as u8
}

pub(super) fn mx_blocks(layer: &Layer) -> Packed {
    let groups = layer.columns / 32;
    let scales: Vec<u8> = (0..layer.rows * groups)
        .map(|at| power(layer, at))
        .collect();
    let numbers = float_codes("E8M0");
    Packed {
        parts: vec![
            part(
                "weight_blocks",
                Dtype::U8,
                &[layer.rows, groups, 16],
                bytes(layer),
            ),
            part(
                "weight_scales",
                Dtype::U8,
                &[layer.rows, groups],
                scales.clone(),
            ),
        ],
        weights: weights(layer, 32, |at| numbers[usize::from(scales[at])]),
    }
}

fn mx_packed(layer: &Layer) -> Packed {
    let shape = [layer.rows, layer.columns / 2];
    let mut packed = mx_blocks(layer);
    packed.parts[0] = part("weight_packed", Dtype::U8, &shape, bytes(layer));
    packed.parts[1].0 = "weight_scale".to_owned();
    packed
}

/// A second scale, of the tensor.
fn of_tensor(layer: &Layer) -> f32 {
    (3 + layer.pick("tensor", 0, 1000)) as f32 / 7.0
}

fn nv(layer: &Layer, codes: &str, second: &str, by_division: bool) -> Packed {
    let groups = layer.columns / 16;
    let scales: Vec<u8> = (0..layer.rows * groups).map(|at| e4m3(layer, at)).collect();
    let numbers = float_codes("E4M3");
    let all = of_tensor(layer);
    let shape = [layer.rows, layer.columns / 2];
    let scale = |at: usize| {
        let scale = numbers[usize::from(scales[at])];
        if by_division {
            scale / all
        } else {
            scale * all
        }
    };
    let second_shape: &[usize] = if by_division { &[1] } else { &[] };
    Packed {
        weights: weights(layer, 16, scale),
        parts: vec![
            part(codes, Dtype::U8, &shape, bytes(layer)),
            part(
                "weight_scale",
                Dtype::F8_E4M3,
                &[layer.rows, groups],
                scales.clone(),
            ),
            part(second, Dtype::F32, second_shape, f32s([all])),
        ],
    }
}

fn nv_packed(layer: &Layer) -> Packed {
    let mut packed = nv(layer, "weight_packed", "weight_global_scale", true);
    let input = part("input_global_scale", Dtype::F32, &[1], f32s([3.0]));
    packed.parts.push(input);
    packed
}

pub(super) fn nv_modelopt(layer: &Layer) -> Packed {
    let mut packed = nv(layer, "weight", "weight_scale_2", false);
    packed
        .parts
        .push(part("input_scale", Dtype::F32, &[], f32s([3.0])));
    packed
}

fn mx_settings() -> Value {
    json!({
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.embed_tokens", "lm_head"],
    })
}

fn is_mlp(module: &str) -> bool {
    module.contains(".mlp.")
}

fn nv_settings() -> Value {
    json!({
        "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "exclude_modules": ["lm_head", "model.layers.0.self_attn*"],
        "producer": { "name": "modelopt", "version": "0.33.0" },
    })
}

fn is_nv(module: &str) -> bool {
    is_inner(module) && !module.contains("layers.0.self_attn")
}

#[test]
fn mxfp4_is_blocks_and_powers_of_two() {
    Checkpoint::new(mx_settings(), is_mlp, mx_blocks).assert_dequantised();
    let group = json!({
        "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
    });
    let settings = compressed_tensors::settings("mxfp4-pack-quantized", group);
    Checkpoint::new(settings, is_inner, mx_packed).assert_dequantised();
}

#[test]
fn nvfp4_has_a_second_scale() {
    Checkpoint::new(nv_settings(), is_nv, nv_modelopt).assert_dequantised();
    let group = json!({
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
    });
    let settings = compressed_tensors::settings("nvfp4-pack-quantized", group);
    Checkpoint::new(settings, is_inner, nv_packed).assert_dequantised();
}

#[test]
fn weights_alone_may_be_nvfp4() {
    let mut settings = nv_settings();
    settings["quant_algo"] = json!("W4A16_NVFP4");
    let plain = |layer: &Layer| nv(layer, "weight", "weight_scale_2", false);
    Checkpoint::new(settings, is_nv, plain).assert_dequantised();
}

#[test]
fn each_layer_may_have_an_algorithm() {
    let is_fp8 = |module: &str| module.contains("self_attn");
    let which = |module: &str| is_inner(module) && !module.contains("layers.1.mlp");
    let mut layers = serde_json::Map::new();
    let mut pack = |layer: &Layer| {
        let own = match is_fp8(&layer.module) {
            true => json!({ "quant_algo": "FP8" }),
            false => json!({ "quant_algo": "W4A16_NVFP4", "group_size": 16 }),
        };
        layers.insert(layer.module.clone(), own);
        match is_fp8(&layer.module) {
            true => fp8::per_tensor(layer),
            false => nv_modelopt(layer),
        }
    };
    let packing = std::cell::RefCell::new(&mut pack);
    let settings = json!({
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "exclude_modules": [],
    });
    let mut checkpoint = Checkpoint::new(settings, which, |layer| packing.borrow_mut()(layer));
    checkpoint.files.config["quantization_config"]["quantized_layers"] = layers.into();
    checkpoint.assert_dequantised();

    let refused = |change: &dyn Fn(&mut Value)| {
        let mut files = checkpoint.files.clone();
        change(&mut files.config["quantization_config"]["quantized_layers"]);
        files.refusal().1
    };
    let name = "model.layers.0.mlp.up_proj";
    let without = |layers: &mut Value| {
        layers.as_object_mut().expect("an object").remove(name);
    };
    assert_eq!(
        refused(&without),
        format!(
            "tensor `{name}.weight` is quantised, but `quantization_config.quantized_layers` \
             does not have it"
        )
    );
    let found = refused(&|layers| layers[name] = json!({ "quant_algo": "W4A16_AWQ" }));
    assert!(
        found.starts_with(&format!(
            "`quantization_config.quantized_layers.{name}.quant_algo` is \"W4A16_AWQ\""
        )),
        "{found}"
    );
    assert!(refused(&|layers| layers[name] = json!({})).ends_with("quant_algo` is missing"));
    assert!(refused(&|layers| *layers = Value::Null).ends_with("quantized_layers` is missing"));
}

#[test]
fn the_settings_may_be_in_a_file_of_their_own() {
    let mut checkpoint = Checkpoint::new(nv_settings(), is_nv, nv_modelopt);
    checkpoint.files.config["quantization_config"] = Value::Null;
    let file = json!({
        "producer": { "name": "modelopt", "version": "0.23.0" },
        "quantization": {
            "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
            "exclude_modules": ["lm_head"],
        },
    });
    checkpoint
        .files
        .file("hf_quant_config.json", &file.to_string());
    let notes = checkpoint.assert_dequantised().notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    let found = checkpoint
        .files
        .file("hf_quant_config.json", "{}")
        .refusal();
    assert_eq!(
        found,
        (
            "hf_quant_config.json".to_owned(),
            "`quantization` is missing".to_owned()
        )
    );
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let mx = || Checkpoint::new(mx_settings(), is_mlp, mx_blocks);
    let (blocks, scales) = (
        "model.layers.0.mlp.up_proj.weight_blocks",
        "model.layers.0.mlp.up_proj.weight_scales",
    );
    let found = mx().refused(|it| it.remove(scales));
    assert!(
        found.starts_with(&format!("tensor `{scales}` is missing")),
        "{found}"
    );
    let found = mx().refused(|it| it.tensor(blocks).2 = vec![64, 2, 8]);
    assert_eq!(
        found,
        format!("tensor `{blocks}` has shape [64, 2, 8]; the configuration calls for [64, 1, 16]")
    );
    let found = mx().refused(|it| {
        let settings = &mut it.files.config["quantization_config"];
        settings["modules_to_not_convert"] = json!(["model.layers.*.mlp"]);
    });
    assert!(
        found.ends_with("modules_to_not_convert` says that it is not"),
        "{found}"
    );

    let nv = || Checkpoint::new(nv_settings(), is_nv, nv_modelopt);
    let with = |key: &str, value: Value| nv().refused_with(key, value);
    assert_eq!(
        with("quant_algo", json!("W4A8_AWQ")),
        "`quantization_config.quant_algo` is \"W4A8_AWQ\", which is not supported; supported: \
         FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8, NVFP4, W4A16_NVFP4, MIXED_PRECISION"
    );
    assert!(
        with("group_size", json!(32))
            .ends_with("is 32, which is not supported; supported: 16 with NVFP4")
    );
    for (algorithm, group) in [("MXFP8", 32), ("FP8_PB_WO", 128)] {
        let found = nv().refused(|it| {
            let settings = &mut it.files.config["quantization_config"];
            settings["quant_algo"] = json!(algorithm);
            settings["group_size"] = json!(48);
        });
        assert_eq!(
            found,
            format!(
                "`quantization_config.group_size` is 48, which is not supported; supported: \
                 {group} with {algorithm}"
            )
        );
    }
    let found = with("quant_algo", json!("FP8"));
    assert!(
        found.contains("is U8, which is not supported; supported: F8_E4M3"),
        "{found}"
    );
    let rotated = "model.layers.0.mlp.up_proj.pre_quant_scale";
    let found = nv().refused(|it| {
        it.files
            .tensors
            .push(part(rotated, Dtype::F32, &[1], f32s([1.0])));
    });
    assert!(
        found.starts_with(&format!("tensor `{rotated}` is not part of")),
        "{found}"
    );
}
