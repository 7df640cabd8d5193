//! The default model as published, against an independent reader (`data/gguf_real.py`).

use std::path::PathBuf;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, QkNorm, TensorName, WeightSource};
use ebb_models::model::gguf::TokenType;
use ebb_models::model::{
    DEFAULT_MODEL, LoadedModel, ModelFiles, TokenizerSource, default_cache_dir,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::gguf_families::gguf_name;
use crate::tiny;

#[derive(Deserialize)]
struct Golden {
    tensors: Vec<GoldenTensor>,
    #[serde(default)]
    every: String,
    #[serde(default)]
    count: usize,
}

#[derive(Deserialize)]
struct GoldenTensor {
    name: String,
    shape: Vec<usize>,
    first: Vec<f32>,
    sha256: String,
}

/// The default model's file: `EBB_TEST_MODEL`, else where `ebb` itself keeps it.
fn default_model() -> LoadedModel {
    let path = std::env::var_os("EBB_TEST_MODEL").map(PathBuf::from);
    let cached = || Some(default_cache_dir()?.join(DEFAULT_MODEL.file_name));
    let path = path
        .or_else(cached)
        .expect("HOME, XDG_CACHE_HOME or EBB_TEST_MODEL is set");
    assert!(
        path.is_file(),
        "this test needs the default model at {}: run `ebb generate --prompt hello` once, which \
         downloads it, or set EBB_TEST_MODEL to its path",
        path.display()
    );
    LoadedModel::open(&ModelFiles::Gguf(path)).expect("the published model opens")
}

fn sha256(values: &[bf16]) -> String {
    let mut hash = Sha256::new();
    for value in values {
        hash.update(value.to_le_bytes());
    }
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A tensor of the file under the engine's name for it.
fn engine_name(name: &str) -> TensorName {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["token_embd", "weight"] => TensorName::Embedding,
        ["output_norm", "weight"] => TensorName::FinalNorm,
        ["output", "weight"] => TensorName::LmHead,
        ["blk", layer, part, kind] => {
            let tensor = match (part, kind) {
                ("attn_norm", _) => LayerTensor::AttnNorm,
                ("attn_q", "weight") => LayerTensor::Q,
                ("attn_k", "weight") => LayerTensor::K,
                ("attn_k", _) => LayerTensor::KBias,
                ("attn_v", "weight") => LayerTensor::V,
                ("attn_output", _) => LayerTensor::O,
                ("ffn_norm", _) => LayerTensor::MlpNorm,
                ("ffn_gate", _) => LayerTensor::Gate,
                ("ffn_up", _) => LayerTensor::Up,
                ("ffn_down", _) => LayerTensor::Down,
                other => panic!("{other:?}"),
            };
            TensorName::Layer(layer.parse().expect("a number"), tensor)
        }
        _ => panic!("{name}"),
    }
}

fn assert_tensors(model: &LoadedModel, golden: &Golden) {
    let weights = model.weights();
    for tensor in &golden.tensors {
        let name = engine_name(&tensor.name);
        assert_eq!(
            weights.shape(name).expect("a shape"),
            tensor.shape,
            "{name}"
        );
        let values = weights.load(name).expect("a tensor");
        let first: Vec<f32> = values.iter().take(4).map(|value| value.to_f32()).collect();
        assert_eq!(first, tensor.first, "{name}");
        assert_eq!(sha256(&values), tensor.sha256, "{name}");
    }
}

#[test]
fn the_default_model_is_described_as_published() {
    let model = default_model();
    let spec = &model.spec;
    assert_eq!(
        (model.name.as_str(), model.family),
        (DEFAULT_MODEL.name, tiny::family("llama"))
    );
    assert_eq!(
        (
            spec.hidden,
            spec.layers.len(),
            spec.layers[0].intermediate()
        ),
        (576, 30, 1536)
    );
    assert_eq!(
        (
            spec.heads().q_heads,
            spec.heads().kv_heads,
            spec.heads().head_dim
        ),
        (9, 3, 64)
    );
    assert_eq!((spec.vocab, spec.max_positions), (49152, 8192));
    let attention = spec.attention(0);
    assert!(spec.tied_embeddings && !attention.qkv_bias && attention.qk_norm == QkNorm::None);
    assert_eq!(spec.norm_eps, 1e-5);
    assert_eq!(
        (spec.ropes[0].scale, spec.ropes[0].inv_freq.len()),
        (1.0, 32)
    );
    let last = 100_000f64.powf(-62.0 / 64.0) as f32;
    assert_eq!(spec.ropes[0].inv_freq[31], last);
    assert_eq!(model.parameters(), 134_515_008);
    // `<|im_end|>`, and `<|endoftext|>`, which the file does not name as an end.
    assert_eq!(model.end_ids, [0, 2]);
    assert!(
        model
            .chat_template
            .as_deref()
            .is_some_and(|text| text.contains("named SmolLM"))
    );
    assert_eq!(model.notes, [""; 0]);

    let TokenizerSource::Gguf(tokenizer) = &model.tokenizer else {
        panic!("it is a GGUF file")
    };
    assert_eq!(
        (tokenizer.model.as_str(), tokenizer.pre.as_deref()),
        ("gpt2", Some("smollm"))
    );
    assert_eq!(
        (tokenizer.tokens.len(), tokenizer.tokens[2].as_str()),
        (49152, "<|im_end|>")
    );
    assert_eq!(tokenizer.merges.as_ref().map(Vec::len), Some(48900));
    assert_eq!(
        tokenizer.token_types.as_ref().map(|types| types[2]),
        Some(TokenType::Control)
    );
    let ids = (
        tokenizer.bos,
        tokenizer.eos,
        tokenizer.unknown,
        tokenizer.add_bos,
    );
    assert_eq!(ids, (Some(1), Some(2), Some(0), Some(false)));
}

#[test]
fn every_tensor_of_the_default_model_is_the_reference_bit_by_bit() {
    let model = default_model();
    let golden: Golden =
        serde_json::from_str(include_str!("../data/smollm2_tensors.json")).expect("golden values");
    assert_eq!(golden.tensors.len(), 11);
    assert_tensors(&model, &golden);

    let mut names: Vec<(String, TensorName)> = TensorName::all(&model.spec)
        .into_iter()
        .map(|name| (gguf_name(name), name))
        .collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(names.len(), golden.count);
    let weights = model.weights();
    let mut every = Sha256::new();
    for (_, name) in names {
        every.update(sha256(&weights.load(name).expect("a tensor")));
    }
    let every: String = every
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(every, golden.every);
}

#[test]
#[ignore = "needs the 1.1 GB file qwen2.5-coder-1.5b-instruct-q4_k_m.gguf: EBB_TEST_QWEN_MODEL"]
fn tensors_of_qwen_in_k_quants_are_the_reference_bit_by_bit() {
    let path = std::env::var_os("EBB_TEST_QWEN_MODEL").expect("EBB_TEST_QWEN_MODEL is set");
    let model = LoadedModel::open(&ModelFiles::Gguf(path.into())).expect("the model opens");
    let spec = &model.spec;
    assert_eq!(
        (
            model.family,
            spec.attention(0).qkv_bias,
            spec.tied_embeddings
        ),
        (tiny::family("qwen2"), true, false)
    );
    assert_eq!(
        (
            spec.heads().q_heads,
            spec.heads().kv_heads,
            spec.heads().head_dim
        ),
        (12, 2, 128)
    );
    assert_eq!(model.end_ids, [151_643, 151_645]);
    let golden: Golden =
        serde_json::from_str(include_str!("../data/qwen2.5_tensors.json")).expect("golden values");
    assert_eq!(golden.tensors.len(), 12);
    assert_tensors(&model, &golden);
}
