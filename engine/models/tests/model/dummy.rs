//! Models of random weights, from a config.json alone.

use std::path::Path;
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, TensorName, WeightSource};
use ebb_kernels::weight_formats::{Codes, Quantisation, WeightFormat};
use ebb_models::model::{KeyScales, LoadFormat, LoadedModel, ModelFiles, TokenizerSource};
use safetensors::Dtype;
use serde_json::json;

use crate::hf_builder::HfBuilder;
use crate::packed::assert_packed;
use crate::quantised::compressed_tensors;
use crate::tiny;

/// A directory with nothing but the configuration of a tiny model.
fn config_only() -> tempfile::TempDir {
    config_with(serde_json::Value::Null)
}

/// As [`config_only`], quantised like this.
fn config_with(quantization: serde_json::Value) -> tempfile::TempDir {
    let spec = tiny::spec(tiny::family("llama"), false);
    let mut files = HfBuilder::new(tiny::family("llama"), &spec, Dtype::BF16);
    files.config["quantization_config"] = quantization;
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("config.json"), files.config.to_string()).expect("write");
    dir
}

#[test]
fn a_configuration_alone_is_a_model() {
    let dir = config_only();
    let files = ModelFiles::Directory(dir.path().to_owned());
    LoadedModel::open(&files).expect_err("without weights");
    let open = || LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
    let model = open();
    let spec = tiny::spec(tiny::family("llama"), false);
    assert_eq!(
        (model.spec.hidden, model.spec.layers.len()),
        (spec.hidden, spec.layers.len())
    );
    assert_eq!(model.tokenizer, TokenizerSource::StandIn(spec.vocab));
    let name = TensorName::Layer(0, LayerTensor::Gate);
    let load = |model: &LoadedModel| model.weights().load(name).expect("numbers");
    assert_eq!(
        load(&model).len(),
        name.shape(&spec).iter().product::<usize>()
    );
    assert_eq!(load(&model), load(&open()));
}

#[test]
fn quantised_configurations_have_the_formats_of_their_checkpoints() {
    let spec = tiny::spec(tiny::family("llama"), false);
    let int = |bits, zero| Codes::Int { bits, zero };
    let pack = json!({
        "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 8,
    });
    let mut pack = compressed_tensors::settings("pack-quantized", pack);
    pack["ignore"] = json!(["lm_head", "re:.*down_proj"]);
    for (settings, codes, group, has_offsets) in [
        (json!({ "quant_method": "fp8" }), Codes::E4M3, 32, false),
        (
            json!({ "quant_method": "fp8", "weight_block_size": [16, 16] }),
            Codes::E4M3,
            16,
            false,
        ),
        (
            json!({ "quant_method": "awq", "bits": 4, "group_size": 16 }),
            int(4, 0),
            16,
            true,
        ),
        (
            json!({ "quant_method": "gptq", "bits": 8, "group_size": -1, "sym": true }),
            int(8, 128),
            32,
            false,
        ),
        (pack, int(4, 8), 8, false),
        (json!({ "quant_method": "mxfp4" }), Codes::E2M1, 32, false),
    ] {
        let dir = config_with(settings.clone());
        let files = ModelFiles::Directory(dir.path().to_owned());
        let model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
        let format = model.weights().packed(TensorName::Layer(0, LayerTensor::Q));
        let expected = WeightFormat {
            codes,
            group,
            has_offsets,
        };
        assert_eq!(format.expect("a format"), Some(expected), "{settings}");
        assert_eq!(model.weights().random(), None);
        let ignores_down = settings["ignore"].is_array();
        let is_packed = |name: TensorName| match name {
            TensorName::Layer(_, LayerTensor::Down) => !ignores_down,
            TensorName::Layer(..) => name.shape(&spec).len() == 2,
            _ => false,
        };
        assert_packed(&model.weights(), &spec, is_packed, 0);
    }
    let by_index = json!({ "quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": true });
    let dir = config_with(by_index);
    let files = ModelFiles::Directory(dir.path().to_owned());
    let model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
    assert!(!model.is_packed().expect("formats") && model.weights().random().is_some());
}

#[test]
fn plain_weights_may_be_quantised_and_are_another_model_then() {
    let dir = config_only();
    let files = ModelFiles::Directory(dir.path().to_owned());
    let mut model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
    let spec = model.spec.clone();
    let (plain, identity) = (model.weights(), model.identity());
    let mut identities = vec![identity.weights, model.weights_sha256()];
    for quantisation in [Quantisation::Fp8, Quantisation::Int4] {
        model.quantise(quantisation).expect("plain weights");
        assert_eq!(model.quantisation(), Some(quantisation));
        let is_linear = |name: TensorName| {
            matches!(name, TensorName::Layer(..)) && name.shape(&spec).len() == 2
        };
        assert_packed(&model.weights(), &spec, is_linear, 0);
        assert_packed(&model.weights().expanded(), &spec, |_| false, 0);
        let name = TensorName::Layer(1, LayerTensor::Up);
        let (exact, rounded) = (plain.load(name), model.weights().load(name));
        let (exact, rounded) = (exact.expect("numbers"), rounded.expect("numbers"));
        assert_ne!(exact, rounded);
        let far = |(a, b): (&bf16, &bf16)| (a.to_f32() - b.to_f32()).abs() > 0.05;
        assert!(!exact.iter().zip(&rounded).any(far));
        for hash in [model.identity().weights, model.weights_sha256()] {
            assert!(!identities.contains(&hash));
            identities.push(hash);
        }
    }
    assert!(identities.iter().any(|hash| hash == "random-1+int4"));
}

/// A device makes them by itself, unless something is done to them.
#[test]
fn plain_random_weights_are_known_by_their_seed() {
    let dir = config_only();
    let files = ModelFiles::Directory(dir.path().to_owned());
    let open = || LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
    let mut model = open();
    assert_eq!(model.weights().random(), Some((1, None)));
    assert_eq!(model.weights().expanded().random(), Some((1, None)));
    let scales = KeyScales {
        format: "int4t".to_owned(),
        alpha: vec![0.5; 2],
        heads: 2,
        scales: vec![vec![2.0; 16]; 2],
    };
    let folded = model.fold_key_scales(Some(Arc::new(scales)));
    folded.expect("they fit");
    let name = TensorName::Layer(0, LayerTensor::Q);
    let (scaled, plain) = (model.weights().load(name), open().weights().load(name));
    assert_ne!(scaled.expect("numbers"), plain.expect("numbers"));
    assert_eq!(model.weights().random(), None);
    // Where a device scales keys in every step, weights are as they were.
    assert_eq!(model.unfolded_weights().random(), Some((1, None)));
    let mut quantised = open();
    quantised
        .quantise(Quantisation::Int4)
        .expect("plain weights");
    let int4 = Some((1, Some(Quantisation::Int4)));
    assert_eq!(quantised.weights().random(), int4);
    assert_eq!(quantised.weights().expanded().random(), None);
}

#[test]
fn what_is_quantised_is_not_quantised_again() {
    for desc_act in [false, true] {
        let settings = json!({
            "quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": desc_act,
        });
        let dir = config_with(settings);
        let files = ModelFiles::Directory(dir.path().to_owned());
        let mut model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
        let refused = model.quantise(Quantisation::Int4).is_err();
        // A dummy of what would be expanded is plain.
        assert_eq!(refused, !desc_act);
    }
}

#[test]
fn the_published_shape_of_the_benchmarks_is_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/data/llama-3.1-8b");
    let model = LoadedModel::open_as(&ModelFiles::Directory(dir), LoadFormat::Dummy);
    let model = model.expect("it opens");
    assert_eq!(model.parameters(), 8_030_261_248);
    assert_eq!(
        (model.max_context(), model.family),
        (131_072, tiny::family("llama"))
    );
    // Scaled by 8 where the wavelength is long, kept where it is short.
    let last = model.spec.ropes[0].inv_freq[63];
    assert!((f64::from(last) / 500_000f64.powf(-126.0 / 128.0) * 8.0 - 1.0).abs() < 1e-5);
    assert_eq!(model.spec.ropes[0].inv_freq[0], 1.0);
}
