//! Quantised Hugging Face checkpoints: tiny models of codes and scales that a formula gives.
//!
//! Each layout is written down here once more, from its description: element by element, without
//! the reader's code. What a code and a scale stand for is multiplied in f32 and rounded to bf16
//! once, and a loaded model has to be that to the bit.

mod awq;
pub(crate) mod compressed_tensors;
mod experts;
mod fp4;
mod fp8;
mod gptq;
mod hostile;
mod library;
mod places;
mod settings;

use std::collections::BTreeMap;

use ebb_kernels::bf16;
use ebb_kernels::model::{ModelSpec, TensorName, WeightSource};
use ebb_models::model::{LoadedModel, ModelFiles};
use half::f16;
use safetensors::Dtype;
use serde_json::Value;

use crate::hf_builder::{HfBuilder, Stored, hf_name};
use crate::packed::assert_packed;
use crate::tiny;

/// A linear layer to be packed.
pub(super) struct Layer {
    /// Its name in the checkpoint.
    pub(super) module: String,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// A packed layer: its tensors without the module's name, and what they stand for, row by row.
pub(super) struct Packed {
    pub(super) parts: Vec<Stored>,
    pub(super) weights: Vec<f32>,
}

impl Layer {
    /// A number below `below`, the same for the same place of the same layer.
    pub(super) fn pick(&self, what: &str, place: usize, below: usize) -> usize {
        let text = format!("{}/{what}/{place}", self.module);
        let hash = text.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        (hash >> 20) as usize % below
    }

    /// A scale that F16 and BF16 have exactly.
    pub(super) fn scale(&self, place: usize) -> f32 {
        (1 + self.pick("scale", place, 128)) as f32 / 4096.0
    }

    /// A value for each row and column.
    pub(super) fn each<T>(&self, value: impl Fn(usize, usize) -> T) -> Vec<T> {
        let places = (0..self.rows * self.columns).map(|at| (at / self.columns, at % self.columns));
        places.map(|(row, column)| value(row, column)).collect()
    }
}

/// A tensor of a packed layer.
pub(super) fn part(name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Stored {
    Stored(name.to_owned(), dtype, shape.to_vec(), bytes)
}

pub(super) fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

pub(super) fn f16s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    let exact = |value: f32| {
        assert_eq!(f16::from_f32(value).to_f32(), value);
        f16::from_f32(value).to_le_bytes()
    };
    values.into_iter().flat_map(exact).collect()
}

pub(super) fn bf16s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    let exact = |value: f32| {
        assert_eq!(bf16::from_f32(value).to_f32(), value);
        bf16::from_f32(value).to_le_bytes()
    };
    values.into_iter().flat_map(exact).collect()
}

pub(super) fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// What the codes of a small floating-point format are (`data/float_codes.py`).
pub(super) fn float_codes(format: &str) -> Vec<f32> {
    let text = include_str!("../../data/float_codes.json");
    let formats: Value = serde_json::from_str(text).expect("valid JSON");
    let numbers = formats[format].as_str().expect("a format");
    let number = |text: &str| match text {
        "nan" => f32::NAN,
        bits => f32::from_bits(u32::from_str_radix(bits, 16).expect("hexadecimal")),
    };
    numbers.split(' ').map(number).collect()
}

/// A quantised checkpoint in the making.
pub(super) struct Checkpoint {
    pub(super) files: HfBuilder,
    pub(super) spec: ModelSpec,
    /// What packed modules stand for.
    pub(super) weights: BTreeMap<String, Vec<f32>>,
    /// The module that a tensor is stored in, and the first of its rows there.
    pub(super) place: fn(&ModelSpec, TensorName) -> (String, usize),
}

/// A packing of each kind.
pub(super) fn packings() -> [fn(&Layer) -> Packed; 5] {
    [
        fp8::per_channel,
        awq::plain,
        gptq::plain,
        compressed_tensors::plain,
        fp4::nv_modelopt,
    ]
}

/// The layers that most methods quantise.
pub(super) fn is_inner(module: &str) -> bool {
    module.ends_with("_proj")
}

impl Checkpoint {
    /// A tiny Llama with `settings` as its `quantization_config`, and with `pack` done to the
    /// modules that `which` names.
    pub(super) fn new(
        settings: Value,
        which: impl Fn(&str) -> bool,
        pack: impl Fn(&Layer) -> Packed,
    ) -> Self {
        let family = tiny::family("llama");
        let spec = tiny::spec(family, false);
        let files = HfBuilder::new(family, &spec, Dtype::BF16);
        let mut checkpoint = Self {
            files,
            spec,
            weights: BTreeMap::new(),
            place: |_, name| {
                let tensor = hf_name(name);
                let module = tensor.strip_suffix(".weight").unwrap_or(&tensor);
                (module.to_owned(), 0)
            },
        };
        checkpoint.files.config["quantization_config"] = settings;
        checkpoint.pack(which, pack);
        checkpoint
    }

    /// Packs the modules that `which` names.
    pub(super) fn pack(&mut self, which: impl Fn(&str) -> bool, pack: impl Fn(&Layer) -> Packed) {
        let mut tensors = Vec::new();
        for stored in std::mem::take(&mut self.files.tensors) {
            let Stored(name, _, shape, _) = &stored;
            match (name.strip_suffix(".weight"), shape.as_slice()) {
                (Some(module), &[rows, columns]) if which(module) => {
                    let module = module.to_owned();
                    let layer = Layer {
                        module,
                        rows,
                        columns,
                    };
                    let packed = pack(&layer);
                    let module = layer.module;
                    for Stored(part, dtype, shape, bytes) in packed.parts {
                        tensors.push(Stored(format!("{module}.{part}"), dtype, shape, bytes));
                    }
                    self.weights.insert(module, packed.weights);
                }
                _ => tensors.push(stored),
            }
        }
        assert!(!self.weights.is_empty());
        self.files.tensors = tensors;
    }

    pub(super) fn tensor(&mut self, name: &str) -> &mut Stored {
        let mut tensors = self.files.tensors.iter_mut();
        let found = tensors.find(|stored| stored.0 == name);
        found.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.tensor(name);
        self.files.tensors.retain(|stored| stored.0 != name);
    }

    /// The refusal of the changed checkpoint.
    pub(super) fn refused(mut self, change: impl FnOnce(&mut Self)) -> String {
        change(&mut self);
        self.files.refusal().1
    }

    /// The refusal of one with another setting.
    pub(super) fn refused_with(self, key: &str, value: Value) -> String {
        self.refused(|it| it.files.config["quantization_config"][key] = value)
    }

    /// Whether a module's weight is stored as plain numbers.
    fn is_plain(&self, module: &str) -> bool {
        let name = format!("{module}.weight");
        let weight = self.files.tensors.iter().find(|it| it.0 == name);
        weight.is_some_and(|it| matches!(it.1, Dtype::F32 | Dtype::F16 | Dtype::BF16))
    }

    /// Whether a module's inputs are in groups by an index that is not in order.
    fn is_indexed(&self, module: &str) -> bool {
        let names = ["g_idx", "weight_g_idx"].map(|part| format!("{module}.{part}"));
        let index = self.files.tensors.iter().find(|it| names.contains(&it.0));
        index.is_some_and(|Stored(_, _, _, bytes)| {
            let words = bytes
                .as_chunks()
                .0
                .iter()
                .map(|word| i32::from_le_bytes(*word));
            !words.is_sorted()
        })
    }

    /// Opens the model, and asserts that it has the weights that the codes stand for, packed or
    /// not.
    pub(super) fn assert_dequantised(&self) -> LoadedModel {
        self.assert_dequantised_within(0)
    }

    /// [`Self::assert_dequantised`] where packed weights may be so many numbers of bf16 away.
    pub(super) fn assert_dequantised_within(&self, ulps_max: u16) -> LoadedModel {
        let (_keep, dir) = self.files.directory();
        let model = LoadedModel::open(&ModelFiles::Directory(dir)).expect("a valid model");
        let weights = model.weights();
        for name in TensorName::all(&self.spec) {
            let shape = name.shape(&self.spec);
            let (module, first_row) = (self.place)(&self.spec, name);
            let len: usize = shape.iter().product();
            let width = shape[shape.len() - 1];
            let exact = match self.weights.get(&module) {
                Some(packed) => packed[first_row * width..][..len].to_vec(),
                None => tiny::values(name, &self.spec),
            };
            let expected: Vec<u16> = exact.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
            assert_eq!(weights.shape(name).expect("a shape"), shape, "{name}");
            let bits = |rows: &[bf16]| rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let whole = weights.load(name).expect("a tensor");
            assert!(bits(&whole) == expected, "{name} differs");
            // Rows by themselves, and runs that begin and end within words.
            let &[rows, _] = shape.as_slice() else {
                continue;
            };
            for (first, count) in [(0, 1), (rows - 1, 1), (3, 7), (5, rows - 6)] {
                let mut read = vec![bf16::ZERO; count * width];
                weights.read_rows(name, first, &mut read).expect("rows");
                let expected = &expected[first * width..][..count * width];
                assert!(bits(&read) == expected, "{name}, {count} rows from {first}");
            }
        }
        let is_packed = |name: TensorName| {
            let (module, _) = (self.place)(&self.spec, name);
            let is_packed = self.weights.contains_key(&module);
            is_packed && !self.is_plain(&module) && !self.is_indexed(&module)
        };
        assert_packed(&weights, &self.spec, is_packed, ulps_max);
        model
    }
}
