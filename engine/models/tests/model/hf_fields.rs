//! Fields of a family's config.json, read without weights: what they mean where they are left out,
//! and which are refused.

use ebb_kernels::model::ModelSpec;
use ebb_models::model::{LoadFormat, LoadedModel, ModelError, ModelFiles};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::HfBuilder;
use crate::tiny;

/// The config.json of a tiny model of a family, with fields of its own.
fn config(family: &str, fields: Value) -> Value {
    let family = tiny::family(family);
    let mut config = HfBuilder::new(family, &tiny::spec(family, true), Dtype::BF16).config;
    for field in ["rope_theta", "rope_scaling", "rms_norm_eps", "hidden_act"] {
        config.as_object_mut().expect("an object").remove(field);
    }
    for (field, value) in fields.as_object().expect("an object") {
        config[field] = value.clone();
    }
    config
}

/// Opens a config.json alone, as random weights.
fn open(config: &Value) -> Result<ModelSpec, ModelError> {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("write");
    let files = ModelFiles::Directory(dir.path().to_owned());
    Ok(LoadedModel::open_as(&files, LoadFormat::Dummy)?.spec)
}

fn refusal(config: &Value) -> String {
    match open(config).expect_err("should be refused") {
        ModelError::Refused { reason, .. } => reason.to_string(),
        other => panic!("{other}"),
    }
}

/// Fields that models of experts need.
fn experts(fields: Value) -> Value {
    let mut all = json!({
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64
    });
    let fields = fields.as_object().expect("an object").clone();
    all.as_object_mut().expect("an object").extend(fields);
    all
}

#[test]
fn the_published_phi_moe_is_refused_for_what_it_computes() {
    let phimoe = |fields| config("phimoe", experts(fields));
    open(&phimoe(json!({}))).expect("a plain one is served");
    // Its class is not spelled as in transformers.
    let classes = json!(["PhiMoEForCausalLM"]);
    open(&phimoe(json!({ "architectures": classes }))).expect("the same class");
    let published = phimoe(json!({ "architectures": classes, "lm_head_bias": true }));
    assert!(refusal(&published).starts_with("`lm_head_bias` is true"));
    for scaling in ["longrope", "linear", "dynamic", "llama3", "yarn", "mrope"] {
        let scaling = json!({
            "type": scaling, "factor": 2.0, "short_mscale": 1.25, "long_mscale": 1.25,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        });
        let sentence = refusal(&phimoe(json!({ "rope_scaling": scaling })));
        assert!(
            sentence.starts_with("`rope_scaling.type` is "),
            "{sentence}"
        );
        assert!(sentence.ends_with("supported: default"), "{sentence}");
    }
}
