//! A GGUF file as a source of weights in Hugging Face order, bf16 or packed.

use std::path::PathBuf;
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, ModelSpec, TensorName, WeightSource};
use ebb_kernels::weight_formats::{PackedRows, WeightFormat};

use super::dequant::dequantize;
use super::file::{GgufFile, GgufTensor};
use super::ggml_type::GgmlType;
use super::packed::{pack, packed_format};
use super::rope_scaling::is_rope_factors;
use crate::model::error::{ModelError, Refusal};
use crate::model::families::{GgufFamily, RowOrder, StoredTensor};
use crate::model::tensors::{
    TensorTable, TensorsInOne, check_packed, check_tensors, fill_halves, fill_rows, row_width,
};

/// The weights of a GGUF model, decoded or packed as they are read.
#[derive(Clone, Debug)]
pub(crate) struct GgufWeights {
    file: Arc<GgufFile>,
    path: PathBuf,
    family: &'static GgufFamily,
    spec: ModelSpec,
    /// Some files store several tensors as one.
    in_one: Arc<TensorsInOne>,
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
            layers: spec.layers.len(),
        };
        check_tensors(spec, &table)?;
        Ok(Self {
            file,
            path,
            family,
            spec: spec.clone(),
            in_one: Arc::new(TensorsInOne::new(spec, |name| (family.tensor)(name).name)),
        })
    }

    /// A tensor, and the row of it that a named one begins with.
    fn find(&self, name: TensorName) -> Result<(&GgufTensor, usize), ModelError> {
        let stored = (self.family.tensor)(name);
        match self.file.tensor(&stored.name) {
            Some(tensor) => Ok((tensor, stored.first_row(&self.spec))),
            None => Err(Refusal::MissingTensor(stored.name).at(&self.path)),
        }
    }

    /// The order of rows that the file has in another one: converters permute for interleaved RoPE.
    fn permuted(&self, name: TensorName) -> Option<RowOrder> {
        use LayerTensor as L;
        let TensorName::Layer(layer, L::Q | L::K | L::QBias | L::KBias) = name else {
            return None;
        };
        let permuted = self.family.permutes_qk;
        permuted.then(|| RowOrder::of(&self.spec, layer))
    }
}

/// Weights of a norm that count from 1, of which converters write the sums.
fn weights_from_one(kind: GgmlType, data: &[u8], out: &mut [bf16]) {
    if kind == GgmlType::F32 {
        for (bytes, out) in data.as_chunks().0.iter().zip(out) {
            *out = bf16::from_f32(f32::from_le_bytes(*bytes) - 1.0);
        }
        return;
    }
    dequantize(kind, data, out);
    for value in out {
        *value = bf16::from_f32(value.to_f32() - 1.0);
    }
}

struct Table<'a> {
    file: &'a GgufFile,
    family: &'static GgufFamily,
    /// Layers behind these predict further tokens, and are not used.
    layers: usize,
}

impl Table<'_> {
    /// Whether a tensor is of a layer that predicts further tokens. Only architectures that have
    /// such layers have more of them than the spec.
    fn is_unused(&self, name: &str) -> bool {
        const PREDICTING: &str = "nextn_predict_layers";
        let layer = name
            .strip_prefix("blk.")
            .and_then(|name| name.split('.').next());
        let layer = layer.and_then(|layer| layer.parse::<usize>().ok());
        let can_be = self.family.keys.contains(&PREDICTING);
        can_be && layer.is_some_and(|layer| layer >= self.layers)
    }
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
        names
            .filter(|name| !is_rope_factors(name) && !self.is_unused(name))
            .collect()
    }
}

impl WeightSource for GgufWeights {
    type Error = ModelError;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, ModelError> {
        self.find(name)?;
        // What is stored has the shape that the spec implies: it was checked.
        Ok(name.shape(&self.spec))
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        let (tensor, first) = self.find(name)?;
        let (first_row, file_name) = (first_row + first, &tensor.name);
        let (kind, data) = (tensor.kind, self.file.data(tensor));
        if (self.family.tensor)(name).is_in_halves() {
            let read = fill_halves(file_name, (kind, data), first_row, out);
            return read.map_err(|refusal| refusal.at(&self.path));
        }
        if name.is_norm() && self.spec.norms.from_one {
            let read = fill_rows(file_name, out.len(), out, |_, values| {
                weights_from_one(kind, data, values);
                Ok(())
            });
            return read.map_err(|refusal: Refusal| refusal.at(&self.path));
        }
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
        let read = match self.permuted(name) {
            Some(order) => fill_rows(file_name, width, out, |row, values| {
                for (row, values) in (first + row..).zip(values.chunks_exact_mut(width)) {
                    decode_row(order.stored(row), values);
                }
                Ok(())
            }),
            None => fill_rows(file_name, row_width(&tensor.shape), out, |row, values| {
                let from = (first_row + row) * row_width(&tensor.shape);
                let bytes = |values: usize| values / kind.block_elements() * kind.block_bytes();
                dequantize(kind, &data[bytes(from)..][..bytes(values.len())], values);
                Ok(())
            }),
        };
        read.map_err(|refusal: Refusal| refusal.at(&self.path))
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, ModelError> {
        let (tensor, _) = self.find(name)?;
        let is_matrix = tensor.shape.len() >= 2;
        Ok(packed_format(tensor.kind).filter(|_| is_matrix))
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        mut out: PackedRows<'_>,
    ) -> Result<(), ModelError> {
        let (tensor, first) = self.find(name)?;
        let (kind, data) = (tensor.kind, self.file.data(tensor));
        let Some(format) = packed_format(kind) else {
            unreachable!("the {name} tensor is not packed");
        };
        let (first_row, width) = (first_row + first, row_width(&tensor.shape));
        let row_bytes = width / kind.block_elements() * kind.block_bytes();
        match self.permuted(name) {
            Some(order) => {
                for row in 0..out.codes.len() / width {
                    let from = order.stored(first_row + row) * row_bytes;
                    let bytes = &data[from..][..row_bytes];
                    pack(kind, bytes, out.reborrow().slice(&format, width, row, 1));
                }
            }
            None => {
                let count = out.codes.len() / width;
                let bytes = &data[first_row * row_bytes..][..count * row_bytes];
                pack(kind, bytes, out.reborrow());
            }
        }
        check_packed(&tensor.name, &format, width, &out).map_err(|refusal| refusal.at(&self.path))
    }

    fn done_reading(&self, name: TensorName) {
        if let Ok((tensor, _)) = self.find(name)
            && self.in_one.is_read(name, &tensor.name)
        {
            self.file.done_reading(tensor);
        }
    }
}
