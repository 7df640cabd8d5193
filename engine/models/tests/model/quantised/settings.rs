//! Settings that no method has, and `quantization_config` itself.

use serde_json::{Value, json};

use super::{Checkpoint, fp8, is_inner};

fn refused(settings: Value) -> String {
    Checkpoint::new(settings, is_inner, fp8::per_tensor).refused(|_| {})
}

#[test]
fn methods_are_known_by_name() {
    assert_eq!(
        refused(json!({ "quant_method": "bitsandbytes", "load_in_4bit": true })),
        "`quantization_config.quant_method` is \"bitsandbytes\", which is not supported; \
         supported: awq, compressed-tensors, fbgemm_fp8, fp8, gptq, modelopt, modelopt_fp4, mxfp4"
    );
    assert_eq!(
        refused(json!({ "bits": 4 })),
        "`quantization_config.quant_method` is missing"
    );
    assert!(refused(json!("fp8")).contains("expected an object"));
    assert!(refused(json!({ "quant_method": 8 })).contains("quant_method` is 8; expected a text"));
}

#[test]
fn values_are_of_their_kind() {
    let fp8 = |key: &str, value: Value| {
        let mut settings = json!({ "quant_method": "fp8" });
        settings[key] = value;
        refused(settings)
    };
    assert!(fp8("fmt", json!("e5m2")).ends_with("supported: e4m3, float8_e4m3fn"));
    assert!(fp8("activation_scheme", json!("none")).ends_with("supported: dynamic, static"));
    for wrong in [
        json!([128]),
        json!([0, 128]),
        json!([-1, 1]),
        json!("128x128"),
        json!([1e3, 1]),
    ] {
        let found = fp8("weight_block_size", wrong);
        assert!(
            found.ends_with("expected two positive whole numbers"),
            "{found}"
        );
    }
    assert!(fp8("modules_to_not_convert", json!("lm_head")).contains("expected a list of names"));
    assert!(fp8("ignored_layers", json!([1])).contains("expected a list of names"));
}

#[test]
fn an_older_name_of_the_settings_is_read() {
    let settings = json!({ "quant_method": "fp8" });
    let mut checkpoint = Checkpoint::new(settings.clone(), is_inner, fp8::per_tensor);
    checkpoint.files.config["quantization_config"] = Value::Null;
    checkpoint.files.config["compression_config"] = settings;
    checkpoint.assert_dequantised();
}

#[test]
fn settings_without_quantised_tensors_change_nothing() {
    let mut checkpoint = Checkpoint::new(json!(null), is_inner, |layer| {
        let shape = [layer.rows, layer.columns];
        let values = layer.each(|row, column| layer.scale(row * layer.columns + column));
        super::Packed {
            parts: vec![super::part(
                "weight",
                safetensors::Dtype::BF16,
                &shape,
                super::bf16s(values.clone()),
            )],
            weights: values,
        }
    });
    checkpoint.files.config["quantization_config"] = json!({ "quant_method": "fp8" });
    let notes = checkpoint.assert_dequantised().notes;
    assert!(notes.is_empty(), "{notes:?}");
}
