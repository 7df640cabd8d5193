//! Models of random weights: any shape can be run and measured without files.

use std::convert::Infallible;

use half::bf16;

use super::weights::rows_of;
use super::{LayerTensor, ModelSpec, TensorName, WeightSource};
use crate::split_mix;

/// How one tensor's values are drawn: uniform in `center ± amplitude`, value `i` a function of
/// `seed` and `i` alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Uniform {
    pub(crate) seed: u64,
    pub(crate) amplitude: f32,
    pub(crate) center: f32,
}

impl Uniform {
    /// Of a tensor of a model: projections have variance 1 / inputs, which keeps the scale of what
    /// goes through; norms lie near 1, or near 0 where they count from 1, biases near 0.
    pub(crate) fn of(spec: &ModelSpec, name: TensorName, seed: u64) -> Self {
        let index = TensorName::all(spec).iter().position(|n| *n == name);
        let (amplitude, center) = match (&name.shape(spec)[..], name) {
            ([.., _, inputs], TensorName::Layer(_, tensor)) if !tensor.is_expert_bias() => {
                ((3.0 / *inputs as f32).sqrt(), 0.0)
            }
            ([_, inputs], TensorName::Embedding | TensorName::LmHead) => {
                ((3.0 / *inputs as f32).sqrt(), 0.0)
            }
            (_, TensorName::Layer(_, tensor)) if tensor.is_about_one() => (0.1, 1.0),
            // As in models: further from 0, xIELU jumps there, and roundings show.
            (_, TensorName::Layer(_, LayerTensor::XieluEps)) => (0.0, -1e-6),
            _ if name.is_norm() && !spec.norms.from_one => (0.1, 1.0),
            _ => (0.1, 0.0),
        };
        Self {
            // No tensor has 2^40 values, so no two draw from the same numbers.
            seed: seed.wrapping_add((index.unwrap_or(0) as u64 + 1) << 40),
            amplitude,
            center,
        }
    }

    /// Value `index`; `fill_random` of the CUDA kernels computes the same, up to a rounding where
    /// `center` is not 0.
    fn value(self, index: u64) -> bf16 {
        let unit = (split_mix(self.seed, index + 1) >> 40) as f32 * (2.0 / (1 << 24) as f32) - 1.0;
        bf16::from_f32(unit * self.amplitude + self.center)
    }

    /// Writes the values from `first` on.
    pub(crate) fn fill(self, first: u64, out: &mut [bf16]) {
        for (value, index) in out.iter_mut().zip(first..) {
            *value = self.value(index);
        }
    }
}

/// Random weights of a valid spec: the same model for the same seed.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomWeights {
    /// The shape of the model.
    pub spec: ModelSpec,
    /// Which of all models of that shape.
    pub seed: u64,
}

impl WeightSource for RandomWeights {
    type Error = Infallible;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Infallible> {
        Ok(name.shape(&self.spec))
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Infallible> {
        let (_, width) = rows_of(&name.shape(&self.spec));
        Uniform::of(&self.spec, name, self.seed).fill((first_row * width) as u64, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LayerTensor, QkNorm, Rope, UniformModel};

    #[test]
    fn tensors_differ_have_their_scale_and_do_not_depend_on_threads() {
        let spec = UniformModel {
            hidden: 512,
            layers: 1,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 128,
            intermediate: 1200,
            vocab: 300,
            norm_eps: 1e-5,
            rope: Rope::new(vec![1.0; 64], 1.0),
            qkv_bias: false,
            qk_norm: QkNorm::None,
            tied_embeddings: true,
            max_positions: 100,
            ..UniformModel::default()
        }
        .spec();
        let mut weights = RandomWeights { spec, seed: 3 };
        let Ok(gate) = weights.load(TensorName::Layer(0, LayerTensor::Gate));
        let Ok(up) = weights.load(TensorName::Layer(0, LayerTensor::Up));
        let Ok(norm) = weights.load(TensorName::FinalNorm);
        assert_ne!(gate[..50], up[..50]);
        let mut whole = vec![bf16::ZERO; gate.len()];
        Uniform::of(
            &weights.spec,
            TensorName::Layer(0, LayerTensor::Gate),
            weights.seed,
        )
        .fill(0, &mut whole);
        assert_eq!(gate, whole);
        let moments = |values: &[bf16]| {
            let n = values.len() as f64;
            let mean = values.iter().map(|v| f64::from(v.to_f32())).sum::<f64>() / n;
            let square = values.iter().map(|v| f64::from(v.to_f32()).powi(2));
            (mean, square.sum::<f64>() / n)
        };
        let (mean, square) = moments(&gate);
        assert!(
            mean.abs() < 1e-3 && (square * 512.0 - 1.0).abs() < 0.01,
            "{mean} {square}"
        );
        assert!((moments(&norm).0 - 1.0).abs() < 0.02);
        weights.seed = 4;
        let Ok(other) = weights.load(TensorName::Layer(0, LayerTensor::Gate));
        assert_ne!(gate[..50], other[..50]);
    }
}
