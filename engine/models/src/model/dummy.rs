//! Random weights of [`LoadFormat::Dummy`](super::LoadFormat), plain or packed.
//!
//! Packed tensors are random codes, and scales of a size that gives weights the variance 1 /
//! inputs, as plain ones have. So a model that is larger as bf16 than memory takes no longer than
//! its bytes.

use std::collections::HashMap;

use ebb_kernels::model::{ModelSpec, RandomWeights, TensorName, WeightSource};
use ebb_kernels::weight_formats::{Codes, PackedRows, PackedTensor, WeightFormat};
use ebb_kernels::{bf16, split_mix};

use super::error::ModelError;

/// Of all dummies.
const SEED: u64 = 1;

/// Random weights, the same for the same shape and formats.
#[derive(Clone, Debug)]
pub(crate) struct DummyWeights {
    random: RandomWeights,
    /// Tensors that are packed.
    formats: HashMap<TensorName, WeightFormat>,
}

impl DummyWeights {
    pub(crate) fn new(spec: &ModelSpec, formats: HashMap<TensorName, WeightFormat>) -> Self {
        let random = RandomWeights {
            spec: spec.clone(),
            seed: SEED,
        };
        Self { random, formats }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.random.seed
    }

    /// Whether weights are those of [`RandomWeights`], which devices can make by themselves.
    pub(crate) fn is_plain(&self) -> bool {
        self.formats.is_empty()
    }

    fn inputs(&self, name: TensorName) -> usize {
        name.shape(&self.random.spec).last().copied().unwrap_or(1)
    }
}

impl WeightSource for DummyWeights {
    type Error = ModelError;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, ModelError> {
        Ok(name.shape(&self.random.spec))
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        let Some(format) = self.formats.get(&name) else {
            return match self.random.read_rows(name, first_row, out) {
                Ok(()) => Ok(()),
                Err(never) => match never {},
            };
        };
        let inputs = self.inputs(name);
        let rows = out.len() / inputs.max(1);
        let mut tensor = PackedTensor::new(*format, rows, inputs);
        self.read_packed(name, first_row, tensor.rows_mut(0, rows))?;
        out.copy_from_slice(&tensor.dequantise());
        Ok(())
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, ModelError> {
        Ok(self.formats.get(&name).copied())
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), ModelError> {
        let Some(format) = self.formats.get(&name) else {
            unreachable!("the {name} tensor is not packed");
        };
        let inputs = self.inputs(name);
        let groups = format.groups(inputs);
        let (mean, deviation) = moments(format.codes);
        let scale = (inputs as f32).sqrt().recip() / deviation;
        let numbers = Numbers::of(&name.to_string());
        for (row, codes) in (first_row..).zip(out.codes.chunks_mut(inputs)) {
            numbers.codes(format.codes, row * inputs, codes);
        }
        for (group, to) in (first_row * groups..).zip(out.scales.iter_mut()) {
            // From three to five quarters.
            let share = (numbers.at(group as u64 | 1 << 63) >> 56) as f32 / 512.0;
            *to = scale * (0.75 + share);
        }
        for (to, scale) in out.offsets.iter_mut().zip(out.scales) {
            *to = -mean * *scale;
        }
        Ok(())
    }
}

/// Mean and standard deviation of what all codes mean.
fn moments(codes: Codes) -> (f32, f32) {
    let values = codes.values();
    let finite: Vec<f32> = values.into_iter().filter(|v| v.is_finite()).collect();
    let count = finite.len() as f32;
    let mean = finite.iter().sum::<f32>() / count;
    let square = finite.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / count;
    (mean, square.sqrt())
}

/// The random numbers of a tensor: each a function of its place.
struct Numbers(u64);

impl Numbers {
    /// FNV-1a of the tensor's name.
    fn of(name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(SEED ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
            });
        Self(hash)
    }

    fn at(&self, place: u64) -> u64 {
        split_mix(self.0, place)
    }

    /// Codes from a place on: a byte of a number for each.
    fn codes(&self, codes: Codes, first: usize, out: &mut [u8]) {
        let shift = 8 - codes.bits();
        let mut number = [0; 8];
        for (place, code) in (first..).zip(out.iter_mut()) {
            if place % 8 == 0 || place == first {
                number = self.at((place / 8) as u64).to_le_bytes();
            }
            let byte = number[place % 8];
            *code = match codes {
                // No NaN.
                Codes::E4M3 if byte & 0x7F == 0x7F => byte ^ 0x40,
                _ => byte >> shift,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use ebb_kernels::model::{LayerTensor, Rope, UniformModel};

    use super::*;

    fn spec() -> ModelSpec {
        UniformModel {
            hidden: 96,
            layers: 1,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 32,
            intermediate: 2000,
            vocab: 64,
            norm_eps: 1e-5,
            rope: Rope::new(vec![1.0; 16], 1.0),
            max_positions: 100,
            ..UniformModel::default()
        }
        .spec()
    }

    #[test]
    fn packed_weights_have_the_variance_of_plain_ones_and_any_rows_are_the_same() {
        let name = TensorName::Layer(0, LayerTensor::Gate);
        let int = |bits, zero| Codes::Int { bits, zero };
        let all = [Codes::E4M3, Codes::E2M1, Codes::Iq4, int(4, 8), int(8, 128)];
        let formats = all.map(|codes| (codes, false)).into_iter();
        for (codes, has_offsets) in formats.chain([(int(4, 0), true)]) {
            let format = WeightFormat {
                codes,
                group: 20,
                has_offsets,
            };
            let weights = DummyWeights::new(&spec(), [(name, format)].into());
            let whole = weights.load(name).expect("numbers");
            let squares = whole.iter().map(|w| f64::from(w.to_f32()).powi(2));
            let variance = squares.sum::<f64>() / whole.len() as f64 * 96.0;
            assert!((variance - 1.0).abs() < 0.05, "{codes:?}: {variance}");
            let mut part = PackedTensor::new(format, 3, 96);
            let read = weights.read_packed(name, 7, part.rows_mut(0, 3));
            read.expect("numbers");
            assert_eq!(part.dequantise(), whole[7 * 96..10 * 96]);
            assert_ne!(part.codes(0), part.codes(1));
        }
    }
}
