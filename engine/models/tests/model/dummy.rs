//! Models of random weights, from a config.json alone.

use std::path::Path;

use ebb_kernels::model::{LayerTensor, TensorName, WeightSource};
use ebb_models::model::{LoadFormat, LoadedModel, ModelFiles, TokenizerSource};
use safetensors::Dtype;

use crate::hf_builder::HfBuilder;
use crate::tiny;

/// A directory with nothing but the configuration of a tiny model.
fn config_only() -> tempfile::TempDir {
    let spec = tiny::spec(tiny::family("llama"), false);
    let files = HfBuilder::new(tiny::family("llama"), &spec, Dtype::BF16);
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
