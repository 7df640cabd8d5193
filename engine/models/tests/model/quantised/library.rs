//! Layers that compressed-tensors packed (`data/compressed_tensors_vectors.py`).

use std::collections::BTreeMap;

use ebb_kernels::bf16;
use safetensors::Dtype;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Checkpoint, Packed, compressed_tensors, part};
use crate::dequant::bytes;

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    format: String,
    weights: Value,
    tensors: BTreeMap<String, Tensor>,
    bf16: String,
}

#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    data: String,
}

/// A module of as many outputs and inputs as the vectors have.
const MODULE: &str = "model.layers.0.self_attn.k_proj";

#[test]
fn layers_that_the_library_packed_are_what_it_makes_of_them() {
    let text = include_str!("../../data/compressed_tensors_vectors.json");
    let vectors: Vectors = serde_json::from_str(text).expect("valid vectors");
    assert_eq!(vectors.cases.len(), 10);
    for case in vectors.cases {
        let tensor = |(name, tensor): (&String, &Tensor)| {
            let dtype: Dtype = serde_json::from_value(json!(tensor.dtype)).expect("a type");
            part(name, dtype, &tensor.shape, bytes(&tensor.data))
        };
        let numbers = bytes(&case.bf16);
        let numbers = numbers.as_chunks().0.iter();
        let weights: Vec<f32> = numbers
            .map(|number| bf16::from_le_bytes(*number).to_f32())
            .collect();
        let settings = compressed_tensors::settings(&case.format, case.weights.clone());
        let checkpoint = Checkpoint::new(
            settings,
            |module| module == MODULE,
            |layer| {
                assert_eq!((layer.rows, layer.columns), (32, 32));
                Packed {
                    parts: case.tensors.iter().map(tensor).collect(),
                    weights: weights.clone(),
                }
            },
        );
        checkpoint.assert_dequantised();
    }
}
