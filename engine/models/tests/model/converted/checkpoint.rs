//! Hugging Face checkpoints of golden models' shapes, with values that tell every element apart as
//! far as bf16 can.

use std::collections::BTreeMap;
use std::path::Path;

use ebb_kernels::bf16;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::{HfBuilder, Stored};

/// A tensor of a checkpoint.
#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
}

/// A checkpoint: config.json, and the tensors by name.
pub(super) struct Checkpoint {
    pub(super) config: Value,
    pub(super) tensors: BTreeMap<String, Tensor>,
}

/// Seven significant bits each, so that bf16 has them exactly.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let seed = name.bytes().fold(7u32, |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(byte.into())
    });
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f32::from((state >> 24) as u8) - 128.0) / 128.0
    };
    let count = shape.iter().product();
    std::iter::repeat_with(next).take(count).collect()
}

/// The object `whole`, of which fields are those of `changes` instead.
pub(super) fn changed(mut whole: Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else {
        panic!("{changes} is no object");
    };
    whole.as_object_mut().expect("an object").extend(changes);
    whole
}

impl Checkpoint {
    /// Of a golden model whose configuration, and shapes by the ends of names, are changed.
    pub(super) fn golden(name: &str, config: Value, shapes: &[(&str, &[usize])]) -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models");
        let path = Path::new(folder).join(format!("{name}.json"));
        let text = std::fs::read_to_string(path).expect("a golden model");
        let golden: Value = serde_json::from_str(&text).expect("JSON");
        let stored = golden["tensors"].as_object().expect("tensors");
        let tensors = stored.iter().map(|(name, shape)| {
            let changed = shapes.iter().find(|(end, _)| name.ends_with(end));
            let shape = match changed {
                Some((_, shape)) => shape.to_vec(),
                None => serde_json::from_value(shape.clone()).expect("a shape"),
            };
            (name.clone(), Self::tensor(name, &shape))
        });
        Self {
            config: changed(golden["config"].clone(), config),
            tensors: tensors.collect(),
        }
    }

    fn tensor(name: &str, shape: &[usize]) -> Tensor {
        Tensor {
            shape: shape.to_vec(),
            values: values(name, shape),
        }
    }

    /// Takes tensors away by a part of their names.
    pub(super) fn without(mut self, part: &str) -> Self {
        self.tensors.retain(|name, _| !name.contains(part));
        self
    }

    pub(super) fn add(&mut self, name: &str, shape: &[usize]) {
        let tensor = Self::tensor(name, shape);
        self.tensors.insert(name.to_owned(), tensor);
    }

    /// The delta rule with three value heads for each of two key heads, so that an order of heads
    /// and its inverse are told apart.
    pub(super) fn with_delta_rule(name: &str) -> Self {
        Self::with_value_heads(name, 6, 32)
    }

    /// The delta rule with so many value heads, of so many channels.
    pub(super) fn with_value_heads(name: &str, heads: usize, dim: usize) -> Self {
        let config = json!({
            "linear_num_value_heads": heads, "linear_value_head_dim": dim,
            "max_position_embeddings": 512
        });
        let (keys, values) = (2 * 32, heads * dim);
        let shapes: [(&str, &[usize]); 11] = [
            ("in_proj_qkv.weight", &[2 * keys + values, 64]),
            ("in_proj_z.weight", &[values, 64]),
            ("in_proj_b.weight", &[heads, 64]),
            ("in_proj_a.weight", &[heads, 64]),
            ("in_proj_qkvz.weight", &[2 * keys + 2 * values, 64]),
            ("in_proj_ba.weight", &[2 * heads, 64]),
            ("A_log", &[heads]),
            ("dt_bias", &[heads]),
            ("conv1d.weight", &[2 * keys + values, 1, 4]),
            ("linear_attn.norm.weight", &[dim]),
            ("linear_attn.out_proj.weight", &[64, values]),
        ];
        Self::golden(name, config, &shapes)
    }

    /// LFM2 with convolutions in the first and the third layer.
    pub(super) fn with_convolutions() -> Self {
        let kinds = ["conv", "full_attention", "conv", "full_attention"];
        let config = json!({ "layer_types": kinds });
        let mut checkpoint = Self::golden("lfm2", config, &[]);
        for layer in [0, 2] {
            let prefix = format!("model.layers.{layer}");
            let attention = format!("{prefix}.self_attn.");
            checkpoint
                .tensors
                .retain(|name, _| !name.starts_with(&attention));
            checkpoint.add(&format!("{prefix}.conv.in_proj.weight"), &[192, 64]);
            checkpoint.add(&format!("{prefix}.conv.conv.weight"), &[64, 1, 3]);
            checkpoint.add(&format!("{prefix}.conv.out_proj.weight"), &[64, 64]);
        }
        checkpoint
    }

    pub(super) fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().expect(key) as usize
    }

    /// The files.
    pub(super) fn hf(&self) -> HfBuilder {
        let stored = self.tensors.iter().map(|(name, tensor)| {
            let bytes = tensor.values.iter();
            let bytes = bytes.flat_map(|value| bf16::from_f32(*value).to_le_bytes());
            Stored(
                name.clone(),
                Dtype::BF16,
                tensor.shape.clone(),
                bytes.collect(),
            )
        });
        HfBuilder {
            config: self.config.clone(),
            files: vec![("tokenizer.json", "{}".into())],
            tensors: stored.collect(),
            shards: 1,
        }
    }
}
