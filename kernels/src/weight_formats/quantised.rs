//! Weights of a source, quantised as they are read.

use half::bf16;

use super::{PackedRows, PackedTensor, Quantisation, WeightFormat};
use crate::model::{TensorName, WeightSource};

/// The weights of `source` with its linear layers quantised, or its experts alone, if at all. The
/// embedding and the output projection stay as they are, and so does what the source has packed
/// already.
#[derive(Debug, Clone)]
pub struct QuantisedWeights<W> {
    source: W,
    quantisation: Option<Quantisation>,
}

impl<W: WeightSource> QuantisedWeights<W> {
    /// Reads nothing. Without a quantisation everything is as the source has it.
    pub fn new(source: W, quantisation: impl Into<Option<Quantisation>>) -> Self {
        Self {
            source,
            quantisation: quantisation.into(),
        }
    }

    /// The weights before they are quantised here.
    pub fn source(&self) -> &W {
        &self.source
    }

    /// What the tensors that it takes become.
    pub fn quantisation(&self) -> Option<Quantisation> {
        self.quantisation
    }

    /// What a tensor is quantised to here, and its inputs, if it is.
    fn of(&self, name: TensorName) -> Result<Option<(Quantisation, usize)>, W::Error> {
        let Some(quantisation) = self.quantisation.filter(|to| to.takes(name)) else {
            return Ok(None);
        };
        if self.source.packed(name)?.is_some() {
            return Ok(None);
        }
        let inputs = self.source.shape(name)?.last().copied();
        Ok(inputs.map(|inputs| (quantisation, inputs)))
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
        let Some((quantisation, inputs)) = self.of(name)? else {
            return self.source.read_rows(name, first_row, out);
        };
        let weights = self.rows(name, first_row, out.len())?;
        let tensor: PackedTensor = quantisation.tensor(inputs, &weights);
        out.copy_from_slice(&tensor.dequantise());
        Ok(())
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, W::Error> {
        match self.of(name)? {
            Some((quantisation, inputs)) => Ok(Some(quantisation.format(inputs))),
            None => self.source.packed(name),
        }
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), W::Error> {
        let Some((quantisation, inputs)) = self.of(name)? else {
            return self.source.read_packed(name, first_row, out);
        };
        let weights = self.rows(name, first_row, out.codes.len())?;
        quantisation.quantise(inputs, &weights, out);
        Ok(())
    }

    fn done_reading(&self, name: TensorName) {
        self.source.done_reading(name);
    }
}
