//! A GGUF file as a source of bf16 weights in Hugging Face order.

use std::path::PathBuf;
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, ModelSpec, TensorName, WeightSource};

use super::dequant::dequantize;
use super::file::GgufFile;
use super::names::{ROPE_FACTORS, gguf_name};
use crate::model::error::{ModelError, Refusal};
use crate::model::family::Family;
use crate::model::tensors::{TensorTable, check_tensors, fill_rows, row_width};

/// The weights of a GGUF model, decoded as they are read.
#[derive(Clone, Debug)]
pub(crate) struct GgufWeights {
    file: Arc<GgufFile>,
    path: PathBuf,
    /// Channels per head where Q and K have to be put back in order.
    permuted_head_dim: Option<usize>,
}

impl GgufWeights {
    /// Checks that the file has exactly the tensors of `spec`.
    pub(crate) fn new(
        file: Arc<GgufFile>,
        path: PathBuf,
        family: Family,
        spec: &ModelSpec,
    ) -> Result<Self, Refusal> {
        check_tensors(spec, &*file)?;
        // Converters permute Q and K for interleaved RoPE in the `llama` architecture only.
        let permuted = matches!(family, Family::Llama | Family::Mistral);
        Ok(Self {
            file,
            path,
            permuted_head_dim: permuted.then_some(spec.head_dim),
        })
    }
}

impl TensorTable for GgufFile {
    fn file_name(&self, name: TensorName) -> String {
        gguf_name(name)
    }

    fn shape(&self, file_name: &str) -> Option<&[usize]> {
        self.tensor(file_name).map(|tensor| tensor.shape.as_slice())
    }

    fn present(&self) -> Vec<&str> {
        let names = self.tensors().iter().map(|tensor| tensor.name.as_str());
        names.filter(|name| *name != ROPE_FACTORS).collect()
    }
}

impl WeightSource for GgufWeights {
    type Error = ModelError;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, ModelError> {
        let tensor = gguf_name(name);
        match self.file.tensor(&tensor) {
            Some(tensor) => Ok(tensor.shape.clone()),
            None => Err(Refusal::MissingTensor(tensor).at(&self.path)),
        }
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        let file_name = gguf_name(name);
        let Some(tensor) = self.file.tensor(&file_name) else {
            return Err(Refusal::MissingTensor(file_name).at(&self.path));
        };
        let (kind, data) = (tensor.kind, self.file.data(tensor));
        let rotated = matches!(
            name,
            TensorName::Layer(
                _,
                LayerTensor::Q | LayerTensor::K | LayerTensor::QBias | LayerTensor::KBias
            )
        );
        // A vector counts as one row to the reader, but its values are what is permuted.
        let width = tensor.shape[1..].iter().product::<usize>();
        let row_bytes = width / kind.block_elements() * kind.block_bytes();
        let decode_row = |row: usize, values: &mut [bf16]| {
            dequantize(kind, &data[row * row_bytes..][..row_bytes], values);
        };
        let first = if tensor.shape.len() == 1 {
            0
        } else {
            first_row
        };
        let read = match self.permuted_head_dim.filter(|_| rotated) {
            Some(head_dim) => fill_rows(&file_name, width, out, |row, values| {
                for (row, values) in (first + row..).zip(values.chunks_exact_mut(width)) {
                    decode_row(interleaved(row, head_dim), values);
                }
                Ok(())
            }),
            None => fill_rows(&file_name, row_width(&tensor.shape), out, |row, values| {
                let from = (first_row + row) * row_width(&tensor.shape);
                let bytes = |values: usize| values / kind.block_elements() * kind.block_bytes();
                dequantize(kind, &data[bytes(from)..][..bytes(values.len())], values);
                Ok(())
            }),
        };
        read.map_err(|refusal: Refusal| refusal.at(&self.path))
    }
}

/// The row of the file that is `row` in half-split order. Converters permute for interleaved RoPE:
/// within each head, row `2j + p` of the file (pair `j`, first or second channel) is row `p ·
/// head_dim / 2 + j`.
fn interleaved(row: usize, head_dim: usize) -> usize {
    let (head, channel) = (row / head_dim, row % head_dim);
    let (second, pair) = (channel / (head_dim / 2), channel % (head_dim / 2));
    head * head_dim + 2 * pair + second
}
