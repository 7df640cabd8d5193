//! Weights of a source, quantised as they are read.

use half::bf16;

use super::{PackedRows, PackedTensor, Quantisation, WeightFormat};
use crate::model::{LayerTensor, TensorName, WeightSource};

/// The weights of `source` with its linear layers quantised. The embedding and the output
/// projection stay as they are, and so does what the source has packed already.
#[derive(Debug, Clone)]
pub struct QuantisedWeights<W> {
    source: W,
    quantisation: Quantisation,
}

impl<W: WeightSource> QuantisedWeights<W> {
    /// Reads nothing.
    pub fn new(source: W, quantisation: Quantisation) -> Self {
        Self {
            source,
            quantisation,
        }
    }

    /// Inputs of a tensor, if it is quantised here.
    fn inputs(&self, name: TensorName) -> Result<Option<usize>, W::Error> {
        use LayerTensor as L;
        let TensorName::Layer(_, tensor) = name else {
            return Ok(None);
        };
        let is_linear = matches!(
            tensor,
            L::Q | L::K | L::V | L::O | L::Gate | L::Up | L::Down
        );
        if !is_linear || self.source.packed(name)?.is_some() {
            return Ok(None);
        }
        Ok(self.source.shape(name)?.last().copied())
    }

    fn rows(&self, name: TensorName, first: usize, values: usize) -> Result<Vec<f32>, W::Error> {
        let mut plain = vec![bf16::ZERO; values];
        self.source.read_rows(name, first, &mut plain)?;
        Ok(plain.iter().map(|value| value.to_f32()).collect())
    }
}

impl<W: WeightSource> WeightSource for QuantisedWeights<W> {
    type Error = W::Error;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, W::Error> {
        self.source.shape(name)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), W::Error> {
        let Some(inputs) = self.inputs(name)? else {
            return self.source.read_rows(name, first_row, out);
        };
        let weights = self.rows(name, first_row, out.len())?;
        let tensor: PackedTensor = self.quantisation.tensor(inputs, &weights);
        out.copy_from_slice(&tensor.dequantise());
        Ok(())
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, W::Error> {
        match self.inputs(name)? {
            Some(inputs) => Ok(Some(self.quantisation.format(inputs))),
            None => self.source.packed(name),
        }
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), W::Error> {
        let Some(inputs) = self.inputs(name)? else {
            return self.source.read_packed(name, first_row, out);
        };
        let weights = self.rows(name, first_row, out.codes.len())?;
        self.quantisation.quantise(inputs, &weights, out);
        Ok(())
    }

    fn done_reading(&self, name: TensorName) {
        self.source.done_reading(name);
    }
}
