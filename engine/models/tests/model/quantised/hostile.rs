//! Damaged and hostile quantised checkpoints.

use ebb_kernels::model::{LayerTensor, TensorName, WeightSource};
use ebb_models::model::{LoadedModel, ModelFiles};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Checkpoint, fp4, fp8, is_inner};
use crate::hf_builder::serialize;
use crate::packed::rows;

#[test]
fn codes_that_are_no_numbers_are_refused_when_they_are_read() {
    let settings = json!({ "quant_method": "fp8" });
    let mut checkpoint = Checkpoint::new(settings, is_inner, fp8::per_tensor);
    checkpoint.tensor("model.layers.1.mlp.down_proj.weight").3[77] = 0xFF;
    let model = checkpoint.files.open().expect("the codes are not read");
    let name = TensorName::all(&model.spec)
        .into_iter()
        .find(|name| model.hf_name(*name) == "model.layers.1.mlp.down_proj.weight");
    let error = model
        .weights()
        .load(name.expect("a tensor"))
        .expect_err("not a number");
    assert!(
        error
            .to_string()
            .contains("down_proj.weight` holds a value that is not finite"),
        "{error}"
    );
}

#[test]
fn packed_codes_and_scales_that_are_no_numbers_are_refused_when_they_are_read() {
    let settings = json!({ "quant_method": "fp8" });
    let name = TensorName::Layer(1, LayerTensor::Down);
    let read = |part: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut checkpoint = Checkpoint::new(settings.clone(), is_inner, fp8::per_tensor);
        let stored = format!("model.layers.1.mlp.down_proj.{part}");
        change(&mut checkpoint.tensor(&stored).3);
        let weights = checkpoint.files.open().expect("not read").weights();
        let format = weights.packed(name).expect("a format").expect("packed");
        rows(&weights, name, format, (0, 32)).map_err(|error| error.to_string())
    };
    assert!(read("weight", &|_| ()).is_ok());
    let scale = |scale: f32| move |bytes: &mut Vec<u8>| *bytes = scale.to_le_bytes().to_vec();
    for found in [
        read("weight", &|bytes| bytes[77] = 0x7F),
        read("weight", &|bytes| bytes[77] = 0xFF),
        read("weight_scale", &scale(f32::INFINITY)),
        read("weight_scale", &scale(f32::NAN)),
        read("weight_scale", &scale(f32::MAX)),
    ] {
        let found = found.expect_err("no number");
        assert!(
            found.contains("down_proj.weight` holds a value that is not finite"),
            "{found}"
        );
    }
}

/// E8M0 has no infinity: 255 is NaN.
#[test]
fn a_scale_that_is_no_power_of_two_is_refused_packed_and_expanded() {
    let name = TensorName::Layer(1, LayerTensor::Down);
    let settings = json!({ "quant_method": "mxfp4" });
    let mut checkpoint = Checkpoint::new(settings, is_inner, fp4::mx_blocks);
    checkpoint
        .tensor("model.layers.1.mlp.down_proj.weight_scales")
        .3[5] = 255;
    let weights = checkpoint.files.open().expect("not read").weights();
    let format = weights.packed(name).expect("a format").expect("packed");
    let packed = rows(&weights, name, format, (0, 32)).expect_err("no number");
    let expanded = weights.load(name).expect_err("no number");
    assert!(packed.to_string().contains("not finite"), "{packed}");
    assert_eq!(packed.to_string(), expanded.to_string());
}

#[test]
fn long_lists_of_patterns_end_soon() {
    let slow = "re:(?:([a-z]|[a-z._0-9]+)(?!z))*!";
    for list in [
        json!(vec![slow; 500]),
        json!(vec![slow; 100_000]),
        json!(vec!["re:.*"; 2000]),
        json!([format!("re:{}", "(".repeat(1000))]),
    ] {
        let settings = json!({
            "quant_method": "compressed-tensors", "config_groups": {}, "ignore": list,
        });
        let start = std::time::Instant::now();
        let found = Checkpoint::new(settings, is_inner, fp8::per_tensor).refused(|_| {});
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
        assert!(found.len() < 300, "{found}");
    }
}

/// Values that settings may have by mistake or by malice.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(|value| json!(value)),
        prop_oneof![Just(-1i64), 0..300i64, any::<i64>()].prop_map(|value| json!(value)),
        Just(json!(u64::MAX)),
        Just(json!("group")),
        Just(json!(["Linear", "re:.*"])),
        Just(json!({ "a": 1 })),
        prop::collection::vec(any::<u64>(), 2).prop_map(|value| json!(value)),
    ]
}

/// One method's settings, with everything that it reads.
const METHODS: [&str; 7] = [
    "awq",
    "compressed-tensors",
    "fp8",
    "gptq",
    "modelopt",
    "mxfp4",
    "fbgemm_fp8",
];

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any settings over any packing open and load, or are refused.
    #[test]
    fn settings_never_panic(
        method in prop::sample::select(METHODS.as_slice()),
        changes in prop::collection::vec((prop::sample::select(KEYS.as_slice()), value()), 0..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        packing in 0..5usize,
    ) {
        let mut settings = json!({
            "quant_method": method, "bits": 4, "group_size": 16, "quant_algo": "NVFP4",
            "format": "pack-quantized", "config_groups": { "group_0": {
                "targets": ["Linear"],
                "weights": { "num_bits": 4, "group_size": 16, "strategy": "group" },
            } },
        });
        for (key, value) in changes {
            if let Some(weights) = settings.pointer_mut("/config_groups/group_0/weights") {
                weights[key] = value.clone();
            }
            settings[key] = value;
        }
        let pack = super::packings()[packing];
        let checkpoint = Checkpoint::new(settings, is_inner, pack);
        let mut bytes = serialize(&checkpoint.files.tensors);
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().expect("a header")) as usize;
        for (place, byte) in damage {
            bytes[place.index(header)] = byte;
        }
        let (_keep, dir) = checkpoint.files.directory();
        std::fs::write(dir.join("model.safetensors"), bytes).expect("write it");
        if let Ok(model) = LoadedModel::open(&ModelFiles::Directory(dir)) {
            let weights = model.weights();
            for name in TensorName::all(&model.spec) {
                let _ = weights.load(name);
                if let Ok(Some(format)) = weights.packed(name) {
                    let _ = rows(&weights, name, format, (1, 3));
                }
            }
        }
    }
}

const KEYS: [&str; 16] = [
    "actorder",
    "bits",
    "block_structure",
    "checkpoint_format",
    "config_groups",
    "desc_act",
    "dynamic",
    "format",
    "group_size",
    "ignore",
    "modules_to_not_convert",
    "num_bits",
    "strategy",
    "symmetric",
    "weight_block_size",
    "zero_point",
];
