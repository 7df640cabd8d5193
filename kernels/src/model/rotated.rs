//! Weights with V's Hadamard rotation folded in as they are read.

use half::bf16;

use super::weights::rows_of;
use super::{LayerTensor, ModelSpec, TensorName, WeightSource};
use crate::formats::rotation::{RotationError, fold_o, fold_v};
use crate::weight_formats::{PackedRows, WeightFormat};

/// The tensors of `source`, of a model of `spec`, folded as [`rotation`](crate::formats::rotation)
/// says. Every row is the same to the bit however the tensor is read.
#[derive(Debug, Clone)]
pub struct Rotated<'a, W> {
    spec: &'a ModelSpec,
    source: W,
}

/// A rotated tensor could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RotatedError<E: std::error::Error + 'static> {
    /// The source failed.
    #[error(transparent)]
    Source(E),
    /// The model cannot be rotated.
    #[error(transparent)]
    Rotation(#[from] RotationError),
}

impl<'a, W: WeightSource> Rotated<'a, W> {
    /// Reads nothing.
    pub fn new(spec: &'a ModelSpec, source: W) -> Self {
        Self { spec, source }
    }

    /// Reads rows of W_v or of V's bias (`width` 1): the whole heads around them, since a channel
    /// of a rotated head is a sum over all of that head's.
    fn read_v(
        &self,
        name: TensorName,
        (first, width): (usize, usize),
        out: &mut [bf16],
    ) -> Result<(), RotatedError<W::Error>> {
        let dim = self.spec.kv_geometry().head_dim;
        let end = first + out.len() / width;
        let (from, to) = (first / dim * dim, end.next_multiple_of(dim));
        if (from, to) == (first, end) {
            self.read_plain(name, (first, width), out)?;
            return Ok(fold_v(out, dim, width)?);
        }
        let mut heads = vec![bf16::ZERO; (to - from) * width];
        self.read_plain(name, (from, width), &mut heads)?;
        fold_v(&mut heads, dim, width)?;
        out.copy_from_slice(&heads[(first - from) * width..(end - from) * width]);
        Ok(())
    }

    /// Rows of `width` values from `first` on. A vector is one row of the source: of that only all
    /// can be asked for.
    fn read_plain(
        &self,
        name: TensorName,
        (first, width): (usize, usize),
        out: &mut [bf16],
    ) -> Result<(), RotatedError<W::Error>> {
        debug_assert!(width > 1 || name.shape(self.spec) == [out.len()] && first == 0);
        let read = self.source.read_rows(name, first, out);
        read.map_err(RotatedError::Source)
    }
}

impl<W: WeightSource> WeightSource for Rotated<'_, W> {
    type Error = RotatedError<W::Error>;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Self::Error> {
        self.source.shape(name).map_err(RotatedError::Source)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Self::Error> {
        match name {
            TensorName::Layer(_, LayerTensor::V) => {
                let (_, width) = rows_of(&name.shape(self.spec));
                self.read_v(name, (first_row, width), out)
            }
            TensorName::Layer(_, LayerTensor::VBias) => self.read_v(name, (0, 1), out),
            _ => {
                let read = self.source.read_rows(name, first_row, out);
                read.map_err(RotatedError::Source)?;
                if let TensorName::Layer(_, LayerTensor::O) = name {
                    fold_o(out, self.spec.kv_geometry().head_dim)?;
                }
                Ok(())
            }
        }
    }

    /// What is rotated is not packed any more.
    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, Self::Error> {
        match name {
            TensorName::Layer(_, LayerTensor::V | LayerTensor::O) => Ok(None),
            _ => self.source.packed(name).map_err(RotatedError::Source),
        }
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), Self::Error> {
        let read = self.source.read_packed(name, first_row, out);
        read.map_err(RotatedError::Source)
    }

    fn done_reading(&self, name: TensorName) {
        self.source.done_reading(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{QkNorm, RandomWeights, Rope, UniformModel};

    fn spec(head_dim: usize) -> ModelSpec {
        UniformModel {
            hidden: 24,
            layers: 1,
            q_heads: 4,
            kv_heads: 2,
            head_dim,
            intermediate: 32,
            vocab: 50,
            norm_eps: 1e-5,
            rope: Rope::new(vec![1.0; head_dim / 2], 1.0),
            qkv_bias: true,
            qk_norm: QkNorm::None,
            tied_embeddings: true,
            max_positions: 64,
            ..UniformModel::default()
        }
        .spec()
    }

    #[test]
    fn any_rows_are_those_of_the_folded_tensor() {
        let spec = spec(16);
        let plain = RandomWeights {
            spec: spec.clone(),
            seed: 5,
        };
        let rotated = Rotated::new(&spec, plain.clone());
        use LayerTensor as L;
        for tensor in [L::V, L::VBias, L::O, L::K] {
            let name = TensorName::Layer(0, tensor);
            let mut want = plain.load(name).unwrap();
            match tensor {
                L::V => fold_v(&mut want, 16, spec.hidden).unwrap(),
                L::VBias => fold_v(&mut want, 16, 1).unwrap(),
                L::O => fold_o(&mut want, 16).unwrap(),
                _ => {}
            }
            assert_eq!(rotated.load(name).unwrap(), want, "{name}");
            let (rows, width) = rows_of(&name.shape(&spec));
            for first in 0..rows {
                for end in first + 1..=rows {
                    let mut part = vec![bf16::ZERO; (end - first) * width];
                    rotated.read_rows(name, first, &mut part).unwrap();
                    assert_eq!(
                        part,
                        want[first * width..end * width],
                        "{name} {first}..{end}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_model_that_cannot_be_rotated_says_so() {
        let spec = spec(12);
        let plain = RandomWeights {
            spec: spec.clone(),
            seed: 5,
        };
        let rotated = Rotated::new(&spec, plain);
        let error = rotated.load(TensorName::Layer(0, LayerTensor::O));
        assert!(error.unwrap_err().to_string().contains("power of two"));
    }
}
