//! A GGUF file as a source of weights in Hugging Face order, bf16 or packed.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, ModelSpec, TensorName, WeightSource};
use ebb_kernels::weight_formats::{PackedRows, WeightFormat};

use super::config::PREDICTING;
use super::dequant::dequantize;
use super::file::{GgufFile, GgufTensor};
use super::ggml_type::GgmlType;
use super::packed::{pack, packed_format};
use super::rope_scaling::is_rope_factors;
use crate::model::error::{ModelError, Refusal};
use crate::model::families::{GgufFamily, RowOrder, StoredTensor};
use crate::model::tensors::{
    TensorTable, TensorsInOne, check_packed, check_tensors, exact_values, fill_rows, row_width,
    split_in_halves,
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
            spec,
            of_shared_kv: of_shared_kv(family, spec),
        };
        check_tensors(spec, &table)?;
        let in_one = TensorsInOne::new(spec, |name| place(&file, family, spec, name).name);
        let weights = Self {
            file,
            path,
            family,
            spec: spec.clone(),
            in_one: Arc::new(in_one),
        };
        for name in TensorName::all(spec) {
            weights.constant(name)?;
        }
        Ok(weights)
    }

    /// What all of a tensor is that no tensor of the file has: 1, or a number of the metadata.
    fn constant(&self, name: TensorName) -> Result<Option<bf16>, Refusal> {
        let place = (self.family.tensor)(name);
        if place.is_ones() {
            return Ok(Some(bf16::ONE));
        }
        let Some((key, layer)) = place.number_of_layer() else {
            return Ok(None);
        };
        let numbers = self.file.metadata().f32s(key)?.unwrap_or_default();
        match numbers.get(layer).filter(|number| number.is_finite()) {
            Some(number) if numbers.len() == self.spec.layers.len() => {
                Ok(Some(bf16::from_f32(*number)))
            }
            _ => {
                let found = format!("{} numbers", numbers.len());
                let expected =
                    format!("a finite one for each of {} layers", self.spec.layers.len());
                Err(Refusal::invalid(key, found, expected))
            }
        }
    }

    /// [`Self::constant`], as an error of this file.
    fn constant_of(&self, name: TensorName) -> Result<Option<bf16>, ModelError> {
        let constant = self.constant(name);
        constant.map_err(|refusal| refusal.at(&self.path))
    }

    /// Where a tensor lies, and what is stored there.
    fn find(&self, name: TensorName) -> Result<(StoredTensor, &GgufTensor), ModelError> {
        let place = place(&self.file, self.family, &self.spec, name);
        match self.file.tensor(&place.name) {
            Some(tensor) => Ok((place, tensor)),
            None => Err(Refusal::MissingTensor(place.name).at(&self.path)),
        }
    }
}

/// Where a file has a tensor; values whose projection is that of the keys as that.
fn place(file: &GgufFile, family: &GgufFamily, spec: &ModelSpec, name: TensorName) -> StoredTensor {
    if let TensorName::Layer(layer, LayerTensor::V) = name
        && spec.attention(layer).v_is_k
    {
        let keys = family.stored(TensorName::Layer(layer, LayerTensor::K));
        return StoredTensor::own(name, keys.name);
    }
    let mut place = family.stored(name);
    let other = place.other.take();
    let is_there = |place: &StoredTensor| file.tensor(&place.name).is_some();
    match other.filter(|other| !is_there(&place) && is_there(other)) {
        Some(other) => *other,
        None => place,
    }
}

/// What projections and norms would be called that layers do without which read the keys and
/// values of another; some files have them.
fn of_shared_kv(family: &GgufFamily, spec: &ModelSpec) -> HashSet<String> {
    use LayerTensor as L;
    let shared = spec.attentions().filter(|(_, a)| a.kv_from.is_some());
    let names = shared.flat_map(|(layer, _)| {
        [L::K, L::V, L::KNorm].map(|tensor| TensorName::Layer(layer, tensor))
    });
    names.map(|name| family.stored(name).name).collect()
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

/// The logarithms of decays, of which converters write `-exp`.
fn logarithms(file_name: &str, decays: &mut [f32]) -> Result<(), Refusal> {
    for decay in decays {
        let logarithm = f64::from(-*decay).ln();
        if !logarithm.is_finite() {
            let expected = "numbers below 0, minus the rates of decay";
            return Err(Refusal::invalid(file_name, *decay, expected));
        }
        *decay = logarithm as f32;
    }
    Ok(())
}

/// Puts values into the model's order.
fn put_in_order<T: Copy>(values: &mut [T], order: RowOrder) {
    let stored = values.to_vec();
    for (row, value) in values.iter_mut().enumerate() {
        *value = stored[order.stored(row)];
    }
}

struct Table<'a> {
    file: &'a GgufFile,
    family: &'static GgufFamily,
    /// Layers behind its own predict further tokens, and are not used.
    spec: &'a ModelSpec,
    of_shared_kv: HashSet<String>,
}

impl Table<'_> {
    /// Whether a tensor is of a layer that predicts further tokens. Only architectures that have
    /// such layers have more of them than the spec.
    fn is_unused(&self, name: &str) -> bool {
        let layer = name
            .strip_prefix("blk.")
            .and_then(|name| name.split('.').next());
        let layer = layer.and_then(|layer| layer.parse::<usize>().ok());
        let can_be = self.family.has_key(PREDICTING);
        can_be && layer.is_some_and(|layer| layer >= self.spec.layers.len())
    }
}

impl TensorTable for Table<'_> {
    fn stored(&self, name: TensorName) -> StoredTensor {
        place(self.file, self.family, self.spec, name)
    }

    fn shape(&self, file_name: &str) -> Option<&[usize]> {
        let tensor = self.file.tensor(file_name);
        tensor.map(|tensor| tensor.shape.as_slice())
    }

    fn present(&self) -> Vec<&str> {
        let names = self.file.tensors().iter();
        let names = names.map(|tensor| tensor.name.as_str());
        let superfluous = |name: &str| {
            is_rope_factors(name) || self.is_unused(name) || self.of_shared_kv.contains(name)
        };
        names.filter(|name| !superfluous(name)).collect()
    }
}

impl WeightSource for GgufWeights {
    type Error = ModelError;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, ModelError> {
        if self.constant_of(name)?.is_none() {
            self.find(name)?;
        }
        // What is stored has the shape that the spec implies: it was checked.
        Ok(name.shape(&self.spec))
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        if let Some(constant) = self.constant_of(name)? {
            out.fill(constant);
            return Ok(());
        }
        let (place, tensor) = self.find(name)?;
        let (kind, data) = (tensor.kind, self.file.data(tensor));
        let read = self.read(name, &place, (kind, data), first_row, out);
        read.map_err(|refusal| refusal.at(&self.path))
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, ModelError> {
        if self.constant_of(name)?.is_some() {
            return Ok(None);
        }
        let (place, tensor) = self.find(name)?;
        // Some vectors lie in matrices.
        let is_matrix = tensor.shape.len().min(name.shape(&self.spec).len()) >= 2;
        // Groups of columns move as a whole or not at all.
        let unbroken = place.column_order(&self.spec).map(RowOrder::unbroken);
        let is_whole = |format: &WeightFormat| {
            unbroken.is_none_or(|columns| columns.is_multiple_of(format.group))
        };
        Ok(packed_format(tensor.kind).filter(|format| is_matrix && is_whole(format)))
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        mut out: PackedRows<'_>,
    ) -> Result<(), ModelError> {
        let (place, tensor) = self.find(name)?;
        let (kind, data) = (tensor.kind, self.file.data(tensor));
        let Some(format) = packed_format(kind) else {
            unreachable!("the {name} tensor is not packed");
        };
        let width = row_width(&tensor.shape);
        let row_bytes = width / kind.block_elements() * kind.block_bytes();
        let count = out.codes.len() / width;
        let mut row = 0;
        for run in place.runs(&self.spec, first_row, count) {
            let bytes = &data[run.first * row_bytes..][..run.count * row_bytes];
            let rows = out.reborrow().slice(&format, width, row, run.count);
            pack(kind, bytes, rows);
            row += run.count;
        }
        if let Some(order) = place.column_order(&self.spec) {
            for row in 0..count {
                let PackedRows {
                    codes,
                    scales,
                    offsets,
                } = out.reborrow().slice(&format, width, row, 1);
                put_in_order(codes, order);
                let groups = order.of_groups(format.group);
                put_in_order(scales, groups);
                put_in_order(offsets, groups);
            }
        }
        check_packed(&tensor.name, &format, width, &out).map_err(|refusal| refusal.at(&self.path))
    }

    fn done_reading(&self, name: TensorName) {
        if let Ok((_, tensor)) = self.find(name)
            && self.in_one.is_read(name, &tensor.name)
        {
            self.file.done_reading(tensor);
        }
    }
}

impl GgufWeights {
    /// [`WeightSource::read_rows`] of a tensor that lies in `place`, among `data`, encoded as
    /// `kind`.
    fn read(
        &self,
        name: TensorName,
        place: &StoredTensor,
        (kind, data): (GgmlType, &[u8]),
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Refusal> {
        let file_name = &place.name;
        let order = place.order(&self.spec);
        if place.is_in_halves() {
            let mut exact = exact_values(file_name, (kind, data))?;
            use LayerTensor as L;
            if matches!(name, TensorName::Layer(_, L::DeltaDecay | L::MambaDecay)) {
                logarithms(file_name, &mut exact)?;
            }
            if let Some(order) = order {
                put_in_order(&mut exact, order);
            }
            split_in_halves(&exact, first_row, out);
            return Ok(());
        }
        if name.is_norm() && self.spec.norms.from_one {
            return fill_rows(file_name, out.len(), out, |_, values| {
                weights_from_one(kind, data, values);
                Ok(())
            });
        }
        let shape = name.shape(&self.spec);
        let width = row_width(&shape);
        let bytes = |values: usize| values / kind.block_elements() * kind.block_bytes();
        let read = |first: usize, out: &mut [bf16]| -> Result<(), Refusal> {
            fill_rows(file_name, width, out, |row, values| {
                let from = bytes((first + row) * width);
                dequantize(kind, &data[from..][..bytes(values.len())], values);
                Ok(())
            })
        };
        // A vector counts as one row, but its values are what lies behind others, and in another
        // order.
        if let [_] = shape[..] {
            let first = place.first_row(&self.spec);
            if !first.is_multiple_of(kind.block_elements()) {
                let found = format!("{kind:?}");
                return Err(Refusal::unsupported(file_name, found, "F32, F16, BF16"));
            }
            fill_rows(file_name, out.len(), out, |_, values| {
                dequantize(kind, &data[bytes(first)..][..bytes(values.len())], values);
                Ok::<_, Refusal>(())
            })?;
            if let Some(order) = order {
                put_in_order(out, order);
            }
            return Ok(());
        }
        let mut rest = &mut *out;
        for run in place.runs(&self.spec, first_row, rest.len() / width.max(1)) {
            let rows;
            (rows, rest) = rest.split_at_mut(run.count * width);
            read(run.first, rows)?;
        }
        if let Some(order) = place.column_order(&self.spec) {
            let rows = out.chunks_exact_mut(width);
            rows.for_each(|row| put_in_order(row, order));
        }
        Ok(())
    }
}
