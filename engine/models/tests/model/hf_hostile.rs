//! Corrupt and hostile Hugging Face directories.

use std::time::{Duration, Instant};

use ebb_kernels::model::{TensorName, WeightSource};
use ebb_models::model::{LoadedModel, ModelError, ModelFiles};
use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::{HfBuilder, Stored, serialize};
use crate::tiny;

fn llama() -> HfBuilder {
    HfBuilder::new(
        tiny::family("llama"),
        &tiny::spec(tiny::family("llama"), true),
        Dtype::BF16,
    )
}

#[test]
fn impossible_configurations_are_refused_by_field() {
    for (field, wrong) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-32)),
        ("hidden_size", json!(32.5)),
        ("hidden_size", json!("32")),
        ("hidden_size", json!(u64::MAX)),
        ("hidden_size", Value::Null),
        ("num_hidden_layers", json!(1_000_000_000u64)),
        ("num_hidden_layers", json!(0)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("head_dim", json!(12)),
        ("head_dim", json!(1u64 << 40)),
        ("intermediate_size", json!(1u64 << 60)),
        ("vocab_size", json!(1u64 << 60)),
        ("rms_norm_eps", json!(-1.0)),
        ("rms_norm_eps", json!(1e300)),
        ("rope_theta", json!(0)),
        ("rope_theta", json!([])),
        ("max_position_embeddings", json!(0)),
        ("max_position_embeddings", json!(u64::MAX)),
        ("eos_token_id", json!(40)),
        ("tie_word_embeddings", json!("yes")),
        ("model_type", Value::Null),
    ] {
        let mut files = llama();
        files.config[field] = wrong.clone();
        let start = Instant::now();
        let (_, sentence) = files.refusal();
        assert!(start.elapsed() < Duration::from_secs(1));
        assert!(sentence.len() < 200, "{field} = {wrong}: {sentence}");
    }
}

#[test]
fn damaged_json_is_refused_with_its_file() {
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat(17 << 20));
    let deep = format!("{{\"a\": {}", "[".repeat(100_000));
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{\"hidden_size\": 1e999}",
        large.as_str(),
        deep.as_str(),
    ] {
        let (_keep, dir) = llama().directory();
        for file in [
            "config.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "added_tokens.json",
        ] {
            let before = std::fs::read(dir.join(file)).ok();
            std::fs::write(dir.join(file), text).expect("write it");
            let error = LoadedModel::open(&ModelFiles::Directory(dir.clone())).expect_err(file);
            assert!(error.to_string().contains(file), "{error}");
            match before {
                Some(before) => std::fs::write(dir.join(file), before).expect("put it back"),
                None => std::fs::remove_file(dir.join(file)).expect("remove it"),
            }
        }
        // A model can do without its generation_config.json.
        std::fs::write(dir.join("generation_config.json"), text).expect("write it");
        let model = LoadedModel::open(&ModelFiles::Directory(dir)).expect("put back, it is valid");
        assert!(
            model.notes[0].starts_with("generation_config.json is left out of account: "),
            "{:?}",
            model.notes
        );
    }
}

#[test]
fn missing_and_wrong_tensors_are_named() {
    let change = |change: &dyn Fn(&mut Vec<Stored>)| {
        let mut files = llama();
        change(&mut files.tensors);
        files.refusal().1
    };
    assert_eq!(
        change(&|tensors| {
            tensors.remove(3);
        }),
        "tensor `model.layers.0.self_attn.k_proj.weight` is missing; \
         the file is incomplete or its configuration wrong"
    );
    assert_eq!(
        change(&|tensors| tensors[0].2 = vec![32, 40]),
        "tensor `model.embed_tokens.weight` has shape [32, 40]; \
         the configuration calls for [40, 32]"
    );
    let extra = "model.layers.0.self_attn.o_proj.bias".to_owned();
    assert!(
        change(&|tensors| {
            tensors.push(Stored(extra.clone(), Dtype::F32, vec![1], vec![0; 4]));
        })
        .contains(&extra),
    );
    assert_eq!(
        change(&|tensors| {
            tensors[0].1 = Dtype::I16;
        }),
        "`model.embed_tokens.weight.dtype` is I16, which is not supported; supported: F32, F16, \
         BF16"
    );
}

/// A safetensors file with any header.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &vec![0; data],
    ]
    .concat()
}

#[test]
fn safetensors_that_lie_are_refused() {
    let (_keep, dir) = llama().directory();
    let entry = |shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let lies = [
        Vec::new(),
        vec![0; 7],
        u64::MAX.to_le_bytes().to_vec(),
        [(1u64 << 40).to_le_bytes().to_vec(), vec![0; 100]].concat(),
        with_header("not JSON", 0),
        with_header(&entry("[1]", "[0,8]"), 8),
        with_header(&entry("[2]", "[0,8]"), 4),
        with_header(&entry("[2]", "[8,0]"), 8),
        with_header(&entry("[4611686018427387904,4]", "[0,0]"), 0),
        with_header(
            &entry("[18446744073709551615]", "[0,18446744073709551615]"),
            0,
        ),
        with_header(&entry("[1]", "[100,104]"), 104),
        with_header(
            r#"{"a":{"dtype":"F1","shape":[1],"data_offsets":[0,4]}}"#,
            4,
        ),
    ];
    for lie in lies {
        std::fs::write(dir.join("model.safetensors"), &lie).expect("write it");
        let start = Instant::now();
        let error = LoadedModel::open(&ModelFiles::Directory(dir.clone())).expect_err("a lie");
        assert!(start.elapsed() < Duration::from_secs(1));
        let error = error.to_string();
        assert!(
            error.contains("model.safetensors: not a valid safetensors file"),
            "{error}"
        );
    }
}

#[test]
fn an_index_cannot_reach_out_of_the_directory_nor_lie_about_its_files() {
    let open_with = |map: Value| {
        let mut files = llama();
        files.shards = 2;
        let (_keep, dir) = files.directory();
        std::fs::write(
            dir.parent().expect("a parent").join("outside.safetensors"),
            b"x",
        )
        .expect("write it");
        let index = json!({ "weight_map": map }).to_string();
        std::fs::write(dir.join("model.safetensors.index.json"), index).expect("write it");
        LoadedModel::open(&ModelFiles::Directory(dir))
            .expect_err("refused")
            .to_string()
    };
    for place in [
        "../outside.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "config.json",
        "",
    ] {
        let error = open_with(json!({ "model.norm.weight": place }));
        assert!(
            error.contains("index.json: `weight_map` is"),
            "{place}: {error}"
        );
    }
    assert!(open_with(json!({})).contains("0 files; expected 1 to 1024 files"));
    let many: serde_json::Map<String, Value> = (0..2000)
        .map(|i| (format!("t{i}"), json!(format!("{i}.safetensors"))))
        .collect();
    assert!(open_with(Value::Object(many)).contains("2000 files"));
    let error = open_with(json!({ "model.norm.weight": "absent.safetensors" }));
    assert!(
        error.starts_with("cannot read ") && error.contains("absent.safetensors"),
        "{error}"
    );
    let error = open_with(json!({ "no.such.tensor": "model-00001-of-00002.safetensors" }));
    assert!(
        error.contains("tensor `no.such.tensor` is missing"),
        "{error}"
    );
}

#[test]
fn a_directory_without_safetensors_says_so() {
    let (_keep, dir) = llama().directory();
    std::fs::remove_file(dir.join("model.safetensors")).expect("remove it");
    std::fs::write(dir.join("pytorch_model.bin"), b"x").expect("write it");
    match LoadedModel::open(&ModelFiles::Directory(dir)).expect_err("refused") {
        ModelError::Refused { reason, .. } => {
            assert!(
                reason
                    .to_string()
                    .contains("pytorch_model.bin, are not supported")
            );
        }
        other => panic!("{other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Safetensors damaged in the header open and load, or are refused.
    #[test]
    fn damaged_safetensors_never_panic(
        places in prop::collection::vec((0..1_800usize, any::<u8>()), 1..4),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let files = llama();
        let mut bytes = serialize(&files.tensors);
        for (place, byte) in places {
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let (_keep, dir) = files.directory();
        std::fs::write(dir.join("model.safetensors"), bytes).expect("write it");
        if let Ok(model) = LoadedModel::open(&ModelFiles::Directory(dir)) {
            for name in TensorName::all(&model.spec) {
                let _ = model.weights().load(name);
            }
        }
    }
}
