//! Safetensors as a source of weights, bf16 or packed.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{ModelSpec, TensorName, WeightSource};
use ebb_kernels::weight_formats::{PackedRows, WeightFormat};
use half::slice::HalfFloatSliceExt;
use safetensors::Dtype;

use super::config::HfModel;
use super::quantised::{
    Class, InParts, Module, Quantisation, QuantisedTensors, is_for_activations, is_for_kv_cache,
    is_stored, quantised_codes,
};
use super::shards::{self, Shards};
use super::tensor_prefix::TensorPrefix;
use crate::model::error::{ModelError, Refusal};
use crate::model::families::{Family, StoredTensor};
use crate::model::gguf::{GgmlType, dequantize};
use crate::model::tensors::{
    TensorTable, TensorsInOne, check_packed, check_tensors, fill_rows, row_width,
};

/// The weights of a Hugging Face directory, converted as they are read.
#[derive(Clone, Debug)]
pub(crate) struct HfWeights {
    shards: Shards,
    dir: PathBuf,
    family: &'static Family,
    spec: ModelSpec,
    /// Where the language model's tensors are.
    prefix: TensorPrefix,
    /// What is stored in codes.
    quantised: Arc<QuantisedTensors>,
    /// Some checkpoints store several tensors as one.
    in_one: Arc<TensorsInOne>,
    /// Sentences for the user.
    notes: Vec<String>,
}

/// The output projection.
const LM_HEAD: &str = "lm_head.weight";

/// What follows a module's name in that of its weight.
const WEIGHT: &str = ".weight";

/// Tensors that some checkpoints hold although the model can do without: RoPE frequencies, which
/// the configuration gives.
fn is_superfluous(file_name: &str) -> bool {
    file_name.ends_with(".rotary_emb.inv_freq")
}

impl HfWeights {
    /// Opens the safetensors in `dir` and checks that they hold exactly the tensors of `model`, in
    /// types that can be converted. A checkpoint that has other parts may hold theirs too.
    pub(crate) fn open(dir: &Path, model: &HfModel) -> Result<Self, ModelError> {
        let shards = Shards::open(dir)?;
        let family = model.family;
        // Every model has a last norm under a name of its own.
        let norm = (family.hf_tensor)(TensorName::FinalNorm).name;
        let prefix = TensorPrefix::find(&norm, |name| shards.get(name).is_some());
        let mut spec = model.spec.clone();
        spec.tied_embeddings |= model.may_be_tied && !is_stored(&shards, &prefix.name(LM_HEAD));
        let mut weights = Self {
            prefix,
            shards,
            dir: dir.to_owned(),
            family,
            spec,
            quantised: Arc::default(),
            in_one: Arc::default(),
            notes: Vec::new(),
        };
        let mut parts = HashSet::new();
        if let Some(quantisation) = &model.quantisation {
            let found = weights.quantised(quantisation);
            let (quantised, of_quantised) = found.map_err(|refusal| refusal.at(dir))?;
            let has_kv_scales = of_quantised.iter().any(|name| is_for_kv_cache(name));
            weights.notes = quantisation.notes(!quantised.is_empty(), has_kv_scales);
            weights.quantised = Arc::new(quantised);
            parts = of_quantised;
        } else {
            weights.check_plain().map_err(|refusal| refusal.at(dir))?;
        }
        let table = Table {
            weights: &weights,
            has_other_parts: model.has_other_parts,
            parts,
        };
        for name in TensorName::all(&weights.spec) {
            let tensor = weights.place(name).name;
            if !weights.quantised.contains_key(&tensor)
                && let Some(stored) = weights.shards.get(&tensor)
            {
                kind(&tensor, stored).map_err(|refusal| refusal.at(weights.shards.path(stored)))?;
            }
        }
        check_tensors(&weights.spec, &table).map_err(|refusal| refusal.at(dir))?;
        let in_one = TensorsInOne::new(&weights.spec, |name| weights.place(name).name);
        weights.in_one = Arc::new(in_one);
        Ok(weights)
    }

    /// The quantised tensors of the model, and the names of everything that belongs to them.
    fn quantised(
        &self,
        quantisation: &Quantisation,
    ) -> Result<(QuantisedTensors, HashSet<String>), Refusal> {
        let mut tensors = QuantisedTensors::new();
        let names = self.shards.names().filter(|name| is_for_activations(name));
        let mut parts: HashSet<String> = names.map(str::to_owned).collect();
        let all = TensorName::all(&self.spec);
        let expected: HashSet<_> = all.iter().map(|name| self.place(*name).name).collect();
        for name in all {
            let place = self.place(name);
            let &[rows, columns] = place.shape(&self.spec).as_slice() else {
                continue;
            };
            let Some(module) = place.name.strip_suffix(WEIGHT) else {
                continue;
            };
            if tensors.contains_key(&place.name) {
                continue;
            }
            let shape = [rows, columns];
            let asked = self.module(name, &place.name);
            let found = quantisation.tensor(&self.shards, &place.name, &asked, shape)?;
            let Some(tensor) = found else {
                continue;
            };
            parts.extend(tensor.parts.iter().cloned());
            // AutoGPTQ writes biases for layers that have none.
            let bias = format!("{module}.bias");
            if let Some(stored) = self.shards.get(&bias)
                && !expected.contains(&bias)
                && self.shards.data(stored).iter().all(|byte| *byte == 0)
            {
                parts.insert(bias);
            }
            tensors.insert(place.name, tensor);
        }
        Ok((tensors, parts))
    }

    /// The module that settings know the weight of `name` by, which is stored as `tensor`. A tied
    /// embedding that is stored as the output projection is one.
    fn module(&self, name: TensorName, tensor: &str) -> Module {
        let as_head = tensor == self.prefix.name(LM_HEAD);
        let plain = match as_head {
            true => LM_HEAD.to_owned(),
            false => (self.family.hf_tensor)(name).name,
        };
        let class = match name {
            TensorName::Embedding if !as_head => Class::Embedding,
            _ => Class::Linear,
        };
        Module::new(tensor, &plain, class)
    }

    /// Refuses codes without settings that say what they mean.
    fn check_plain(&self) -> Result<(), Refusal> {
        for name in TensorName::all(&self.spec) {
            if let Some(codes) = quantised_codes(&self.shards, &self.place(name).name) {
                return Err(Refusal::Contradiction {
                    tensor: codes,
                    problem: "is quantised, but config.json has no `quantization_config` that \
                              says how; add the settings that the checkpoint was made with"
                        .to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Sentences for the user.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether any tensor is quantised.
    pub(crate) fn is_quantised(&self) -> bool {
        !self.quantised.is_empty()
    }

    /// The model's, as its tensors show.
    pub(crate) fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Each file's header, and its length.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.shards.headers()
    }

    /// Each file whole.
    pub(crate) fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.shards.files()
    }

    /// Where a tensor lies. Some tied checkpoints store the embedding as the output projection
    /// only.
    fn place(&self, name: TensorName) -> StoredTensor {
        let mut stored = (self.family.hf_tensor)(name);
        stored.name = self.prefix.name(&stored.name);
        let tied = name == TensorName::Embedding && self.spec.tied_embeddings;
        if tied && !is_stored(&self.shards, &stored.name) {
            let head = self.prefix.name(LM_HEAD);
            if is_stored(&self.shards, &head) {
                stored.name = head;
            }
        }
        stored
    }

    /// Reads rows of what is stored in `place`.
    fn read_stored(
        &self,
        place: &StoredTensor,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        let first_row = first_row + place.first_row(&self.spec);
        let tensor = &place.name;
        if let Some(InParts {
            codes: quantised, ..
        }) = self.quantised.get(tensor)
        {
            let mut exact = Vec::new();
            let read = fill_rows(tensor, quantised.shape()[1], out, |row, values| {
                exact.resize(values.len(), 0.0);
                quantised.dequantise(first_row + row, &mut exact);
                values.convert_from_f32_slice(&exact);
                Ok(())
            });
            return read.map_err(|refusal: Refusal| refusal.at(&self.dir));
        }
        let stored = self.stored(tensor)?;
        let path = self.shards.path(stored);
        let kind = kind(tensor, stored).map_err(|refusal| refusal.at(path))?;
        let width = row_width(&stored.shape);
        let row_bytes = width * kind.block_bytes();
        let read = fill_rows(tensor, width, out, |row, values| {
            let from = (first_row + row) * row_bytes;
            if kind == GgmlType::BF16 && cfg!(target_endian = "little") {
                let bytes = bytemuck::cast_slice_mut(values);
                return Ok(self.shards.read(stored, from, bytes)?);
            }
            let data = &self.shards.data(stored)[from..][..values.len() * kind.block_bytes()];
            dequantize(kind, data, values);
            Ok(())
        });
        read.map_err(|error| match error {
            ReadError::Refused(refusal) => refusal.at(path),
            ReadError::Io(error) => ModelError::io(path, error),
        })
    }

    fn stored(&self, tensor: &str) -> Result<&shards::StoredTensor, ModelError> {
        let missing = || Refusal::MissingTensor(tensor.to_owned()).at(&self.dir);
        self.shards.get(tensor).ok_or_else(missing)
    }
}

/// How a tensor's elements are encoded, which is the same as in GGUF for the types without blocks.
fn kind(tensor: &str, stored: &shards::StoredTensor) -> Result<GgmlType, Refusal> {
    match stored.dtype {
        Dtype::F32 => Ok(GgmlType::F32),
        Dtype::F16 => Ok(GgmlType::F16),
        Dtype::BF16 => Ok(GgmlType::BF16),
        other => Err(Refusal::unsupported(
            format!("{tensor}.dtype"),
            format!("{other:?}"),
            "F32, F16, BF16",
        )),
    }
}

struct Table<'a> {
    weights: &'a HfWeights,
    has_other_parts: bool,
    /// The tensors that quantised ones are made of, and those that none needs.
    parts: HashSet<String>,
}

impl TensorTable for Table<'_> {
    fn stored(&self, name: TensorName) -> StoredTensor {
        self.weights.place(name)
    }

    fn shape(&self, file_name: &str) -> Option<&[usize]> {
        let HfWeights {
            shards, quantised, ..
        } = self.weights;
        if let Some(tensor) = quantised.get(file_name) {
            return Some(tensor.codes.shape());
        }
        shards.get(file_name).map(|stored| stored.shape.as_slice())
    }

    fn present(&self) -> Vec<&str> {
        let HfWeights { prefix, spec, .. } = self.weights;
        // Some tied checkpoints store the embedding once more as the output projection.
        let head = spec.tied_embeddings.then(|| prefix.name(LM_HEAD));
        let superfluous = |name: &str| {
            is_superfluous(name)
                || self.parts.contains(name)
                || head.as_deref() == Some(name)
                || (self.has_other_parts && !prefix.has(name))
        };
        let names = self.weights.shards.names();
        names.filter(|name| !superfluous(name)).collect()
    }
}

impl WeightSource for HfWeights {
    type Error = ModelError;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, ModelError> {
        let tensor = self.place(name).name;
        if !self.quantised.contains_key(&tensor) {
            self.stored(&tensor)?;
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
        let place = self.place(name);
        let Some(order) = place.order(&self.spec) else {
            return self.read_stored(&place, first_row, out);
        };
        // A vector counts as one row, but its values are what is interleaved.
        if let [_] = name.shape(&self.spec)[..] {
            let mut stored = vec![bf16::ZERO; out.len()];
            self.read_stored(&place, first_row, &mut stored)?;
            for (row, value) in out.iter_mut().enumerate() {
                *value = stored[order.stored(row)];
            }
            return Ok(());
        }
        let width = row_width(&name.shape(&self.spec)).max(1);
        let mut rows = (first_row..).zip(out.chunks_exact_mut(width));
        rows.try_for_each(|(row, values)| self.read_stored(&place, order.stored(row), values))
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, ModelError> {
        let quantised = self.quantised.get(&self.place(name).name);
        Ok(quantised.and_then(|tensor| tensor.codes.format()))
    }

    fn done_reading(&self, name: TensorName) {
        let tensor = self.place(name).name;
        if !self.in_one.is_read(name, &tensor) {
            return;
        }
        let parts = match self.quantised.get(&tensor) {
            Some(quantised) => quantised.parts.as_slice(),
            None => std::slice::from_ref(&tensor),
        };
        for stored in parts.iter().filter_map(|name| self.shards.get(name)) {
            self.shards.done_reading(stored);
        }
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        mut out: PackedRows<'_>,
    ) -> Result<(), ModelError> {
        let place = self.place(name);
        let quantised = self.quantised.get(&place.name);
        let packed = quantised.and_then(|tensor| Some((&tensor.codes, tensor.codes.format()?)));
        let Some((tensor, format)) = packed else {
            unreachable!("the {name} tensor is not packed");
        };
        let (first, width) = (place.first_row(&self.spec), tensor.shape()[1]);
        match place.order(&self.spec) {
            Some(order) => {
                for row in 0..out.codes.len() / width {
                    let from = first + order.stored(first_row + row);
                    tensor.pack(from, out.reborrow().slice(&format, width, row, 1));
                }
            }
            None => tensor.pack(first + first_row, out.reborrow()),
        }
        check_packed(&place.name, &format, width, &out).map_err(|refusal| refusal.at(&self.dir))
    }
}

/// Why rows cannot be read, before the file is named.
enum ReadError {
    Refused(Refusal),
    Io(std::io::Error),
}

impl From<Refusal> for ReadError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<std::io::Error> for ReadError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}
