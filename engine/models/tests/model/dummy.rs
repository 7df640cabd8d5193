//! Models of random weights, from a config.json alone.

use std::path::Path;
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, Rope, TensorName, UniformModel, WeightSource};
use ebb_kernels::weight_formats::{Codes, Quantisation, WeightFormat};
use ebb_models::model::gguf::GgmlType;
use ebb_models::model::{KeyScales, LoadFormat, LoadedModel, ModelFiles, TokenizerSource};
use safetensors::Dtype;
use serde_json::json;

use crate::hf_builder::HfBuilder;
use crate::packed::{assert_packed, of_type};
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
    let compressed = compressed_tensors::settings;
    let int8 = json!({ "num_bits": 8, "type": "int", "strategy": "channel" });
    let nvfp4 = json!({
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
    });
    let mxfp8 = json!({ "num_bits": 8, "type": "float", "strategy": "group", "group_size": 32 });
    let modelopt = |algorithm: &str| {
        json!({
            "quant_method": "modelopt", "quant_algo": algorithm, "exclude_modules": ["lm_head"],
        })
    };
    let mut pack = compressed("pack-quantized", pack);
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
        (compressed("int-quantized", int8), int(8, 128), 32, false),
        (
            compressed("nvfp4-pack-quantized", nvfp4),
            Codes::E2M1,
            16,
            false,
        ),
        (compressed("mxfp8-quantized", mxfp8), Codes::E4M3, 32, false),
        (modelopt("NVFP4"), Codes::E2M1, 16, false),
        (modelopt("W4A16_NVFP4"), Codes::E2M1, 16, false),
        (modelopt("FP8"), Codes::E4M3, 32, false),
        (modelopt("FP8_PB_WO"), Codes::E4M3, 32, false),
        (modelopt("MXFP8"), Codes::E4M3, 32, false),
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
        let ignores_down = settings["ignore"]
            .as_array()
            .is_some_and(|list| list.len() > 1);
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
fn output_projections_are_quantised_where_the_settings_have_it() {
    let nvfp4 = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" });
    let weights = json!({ "num_bits": 8, "type": "float", "strategy": "channel" });
    let mut fp8 = compressed_tensors::settings("float-quantized", weights);
    let mut gptq = json!({ "quant_method": "gptq", "bits": 4, "group_size": 16, "lm_head": true });
    fp8["ignore"] = json!([]);
    let head = |settings: &serde_json::Value| {
        let dir = config_with(settings.clone());
        let files = ModelFiles::Directory(dir.path().to_owned());
        let model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
        let is_packed = |name: TensorName| name.is_linear() || name == TensorName::LmHead;
        let head = model
            .weights()
            .packed(TensorName::LmHead)
            .expect("a format");
        if head.is_some() {
            assert_packed(&model.weights(), &model.spec, is_packed, 0);
        }
        head.map(|format| format.codes)
    };
    assert_eq!(head(&nvfp4), Some(Codes::E2M1));
    assert_eq!(head(&fp8), Some(Codes::E4M3));
    assert_eq!(head(&gptq), Some(Codes::Int { bits: 4, zero: 8 }));
    gptq["lm_head"] = json!(false);
    fp8["ignore"] = json!(["lm_head"]);
    for settings in [gptq, fp8, json!({ "quant_method": "fp8" })] {
        assert_eq!(head(&settings), None, "{settings}");
    }
}

/// Embedding and output projection included.
#[test]
fn dummies_of_a_gguf_file_have_its_formats() {
    let spec = UniformModel {
        hidden: 256,
        layers: 1,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 64,
        intermediate: 256,
        vocab: 40,
        norm_eps: 1e-5,
        rope: Rope::new(Vec::new(), 1.0),
        max_positions: 512,
        ..UniformModel::default()
    }
    .spec();
    for kind in GgmlType::ALL {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tiny.gguf");
        std::fs::write(&path, of_type(kind, &spec).build()).expect("write");
        let files = ModelFiles::Gguf(path);
        let stored = LoadedModel::open(&files).expect("a valid model").weights();
        let model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens");
        let weights = model.weights();
        for name in TensorName::all(&spec) {
            let formats = [stored.packed(name), weights.packed(name)];
            let [stored, dummy] = formats.map(|format| format.expect("a format"));
            assert_eq!(stored, dummy, "{kind:?}, {name}");
        }
        let is_packed = kind.block_elements() > 1;
        assert_eq!(weights.random().is_some(), !is_packed);
        let is_matrix = |name: TensorName| is_packed && name.shape(&spec).len() == 2;
        assert_packed(&weights, &spec, is_matrix, 0);
        let name = TensorName::Layer(0, LayerTensor::Down);
        let values = weights.load(name).expect("numbers");
        let squares = values.iter().map(|w| f64::from(w.to_f32()).powi(2));
        let variance = squares.sum::<f64>() / values.len() as f64 * 256.0;
        assert!((variance - 1.0).abs() < 0.1, "{kind:?}: {variance}");
    }
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

/// Those of gpt-oss in its published format; models without experts have none that it takes.
#[test]
fn experts_alone_become_mxfp4() {
    let open = |family: &str, experts: serde_json::Value| {
        let spec = tiny::spec(tiny::family(family), false);
        let mut config = HfBuilder::new(tiny::family(family), &spec, Dtype::BF16).config;
        for (key, value) in experts.as_object().expect("an object") {
            config[key] = value.clone();
        }
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("write");
        let files = ModelFiles::Directory(dir.path().to_owned());
        LoadedModel::open_as(&files, LoadFormat::Dummy).expect("it opens")
    };
    let mut model = open(
        "qwen3_moe",
        json!({ "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32 }),
    );
    model.quantise(Quantisation::Mxfp4).expect("plain weights");
    let is_packed = |name: TensorName| {
        use LayerTensor as L;
        matches!(
            name,
            TensorName::Layer(_, L::ExpertGate | L::ExpertUp | L::ExpertDown)
        )
    };
    let spec = model.spec.clone();
    assert!(TensorName::all(&spec).into_iter().any(is_packed));
    assert_packed(&model.weights(), &spec, is_packed, 0);
    let name = TensorName::Layer(0, LayerTensor::ExpertUp);
    let format = model.weights().packed(name).expect("a format");
    let mxfp4 = WeightFormat {
        codes: Codes::E2M1,
        group: 32,
        has_offsets: false,
    };
    assert_eq!(format, Some(mxfp4));
    let refused = open("llama", json!({})).quantise(Quantisation::Mxfp4);
    assert_eq!(
        refused.unwrap_err(),
        "it quantises experts alone, and this model has none"
    );
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
