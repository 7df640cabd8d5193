//! A GGUF file as a source of bf16 weights in Hugging Face order.

use std::path::PathBuf;
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, ModelSpec, TensorName, WeightSource};

use super::dequant::dequantize;
use super::file::GgufFile;
use super::rope_scaling::is_rope_factors;
use crate::model::error::{ModelError, Refusal};
use crate::model::families::{GgufFamily, StoredTensor};
use crate::model::tensors::{TensorTable, check_tensors, fill_rows, row_width};

/// The weights of a GGUF model, decoded as they are read.
#[derive(Clone, Debug)]
pub(crate) struct GgufWeights {
    file: Arc<GgufFile>,
    path: PathBuf,
    family: &'static GgufFamily,
    spec: ModelSpec,
}

impl GgufWeights {
    /// Checks that the file has exactly the tensors of `spec`.
    pub(crate) fn new(
        file: Arc<GgufFile>,
        path: PathBuf,
        family: &'static GgufFamily,
        spec: &ModelSpec,
    ) -> Result<Self, Refusal> {
        let table = Table {
            file: &file,
            family,
        };
        check_tensors(spec, &table)?;
        Ok(Self {
            file,
            path,
            family,
            spec: spec.clone(),
        })
    }
}

struct Table<'a> {
    file: &'a GgufFile,
    family: &'static GgufFamily,
}

impl TensorTable for Table<'_> {
    fn stored(&self, name: TensorName) -> StoredTensor {
        (self.family.tensor)(name)
    }

    fn shape(&self, file_name: &str) -> Option<&[usize]> {
        let tensor = self.file.tensor(file_name);
        tensor.map(|tensor| tensor.shape.as_slice())
    }

    fn present(&self) -> Vec<&str> {
        let names = self.file.tensors().iter();
        let names = names.map(|tensor| tensor.name.as_str());
        names.filter(|name| !is_rope_factors(name)).collect()
    }
}

impl WeightSource for GgufWeights {
    type Error = ModelError;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, ModelError> {
        let stored = (self.family.tensor)(name);
        match self.file.tensor(&stored.name) {
            // What is stored has the shape that the spec implies: it was checked.
            Some(_) => Ok(name.shape(&self.spec)),
            None => Err(Refusal::MissingTensor(stored.name).at(&self.path)),
        }
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        let stored = (self.family.tensor)(name);
        let first_row = first_row + stored.first_row(&self.spec);
        let file_name = stored.name;
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
        let is_permuted = self.family.permutes_qk && rotated;
        let read = match is_permuted.then_some(self.spec.heads().head_dim) {
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
