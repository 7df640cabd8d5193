//! Safetensors as a source of weights, bf16 or packed.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, ModelSpec, TensorName, WeightSource};
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
use crate::model::families::{Columns, Family, Run, StoredTensor};
use crate::model::gguf::{GgmlType, dequantize};
use crate::model::tensors::{
    TensorTable, TensorsInOne, check_packed, check_tensors, fill_halves, fill_rows, row_width,
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
    /// The formats of the model's tensors that can be packed.
    formats: Arc<HashMap<TensorName, WeightFormat>>,
    /// Layers beyond the model's own, which predict further tokens and are not used.
    unused_layers: Range<usize>,
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
/// the configuration gives, and layers that predict further tokens (Qwen3-Next, ERNIE 4.5).
fn is_superfluous(file_name: &str) -> bool {
    let predicts = ["mtp.", "model.mtp_"];
    let is_of = |begin: &&str| file_name.starts_with(*begin);
    file_name.ends_with(".rotary_emb.inv_freq") || predicts.iter().any(is_of)
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
            formats: Arc::default(),
            unused_layers: model.spec.layers.len()..model.spec.layers.len() + model.unused_layers,
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
            for tensor in weights.place(name).names(&weights.spec) {
                if !weights.quantised.contains_key(&tensor)
                    && let Some(stored) = weights.shards.get(&tensor)
                {
                    let path = weights.shards.path(stored);
                    kind(&tensor, stored).map_err(|refusal| refusal.at(path))?;
                }
            }
        }
        check_tensors(&weights.spec, &table).map_err(|refusal| refusal.at(dir))?;
        let in_one = TensorsInOne::new(&weights.spec, |name| weights.place(name).name);
        weights.in_one = Arc::new(in_one);
        let all = TensorName::all(&weights.spec).into_iter();
        let formats = all.filter_map(|name| Some((name, weights.format(name)?)));
        weights.formats = Arc::new(formats.collect());
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
        let names = all
            .iter()
            .flat_map(|name| self.place(*name).names(&self.spec));
        let expected: HashSet<_> = names.collect();
        for name in all {
            let place = self.place(name);
            let Some(shape) = place.stacked(&self.spec) else {
                continue;
            };
            for (expert, tensor) in place.names(&self.spec).into_iter().enumerate() {
                let module = tensor.strip_suffix(WEIGHT);
                // Stacked matrices are no module's weight.
                if module.is_some() != (shape[0] == 1) || tensors.contains_key(&tensor) {
                    continue;
                }
                let asked = self.module(name, expert, &tensor);
                let found = quantisation.tensor(&self.shards, &tensor, &asked, shape)?;
                let Some(found) = found else {
                    continue;
                };
                parts.extend(found.parts.iter().cloned());
                // AutoGPTQ writes biases for layers that have none.
                let bias = format!("{}.bias", module.unwrap_or(&tensor));
                if let Some(stored) = self.shards.get(&bias)
                    && !expected.contains(&bias)
                    && self.shards.data(stored).iter().all(|byte| *byte == 0)
                {
                    parts.insert(bias);
                }
                let found = InParts {
                    shape: place.shape_of(&self.spec, expert),
                    ..found
                };
                tensors.insert(tensor, found);
            }
        }
        Ok((tensors, parts))
    }

    /// The module that settings know the weight of `name` by, which is stored as `tensor`: that of
    /// an expert, if each has its own. A tied embedding that is stored as the output projection is
    /// one.
    fn module(&self, name: TensorName, expert: usize, tensor: &str) -> Module {
        let as_head = tensor == self.prefix.name(LM_HEAD);
        let plain = match as_head {
            true => LM_HEAD.to_owned(),
            false => stored_as(self.family, &self.spec, name).name_of(expert),
        };
        let class = match name {
            TensorName::Embedding if !as_head => Class::Embedding,
            _ => Class::Linear,
        };
        Module::new(tensor, &plain, class)
    }

    /// Refuses codes without settings that say what they mean.
    fn check_plain(&self) -> Result<(), Refusal> {
        let all = TensorName::all(&self.spec).into_iter();
        for tensor in all.flat_map(|name| self.place(name).names(&self.spec)) {
            if let Some(codes) = quantised_codes(&self.shards, &tensor) {
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
    /// only; some checkpoints store all experts of a layer as one tensor, and older ones may have
    /// it in another order.
    fn place(&self, name: TensorName) -> StoredTensor {
        let mut stored = stored_as(self.family, &self.spec, name);
        stored.name = self.prefix.name(&stored.name);
        let other = stored.other.take().map(|mut other| {
            other.name = self.prefix.name(&other.name);
            *other
        });
        if !is_stored(&self.shards, &stored.name_of(0)) {
            let others = [other, stored.of_all_experts()].into_iter().flatten();
            let others = others.filter(|other| is_stored(&self.shards, &other.name));
            let others: Vec<_> = others.collect();
            // One name may stand for either order.
            let fits = |other: &&StoredTensor| {
                let found = self.shards.get(&other.name);
                found.is_some_and(|found| found.shape == other.shape(&self.spec))
            };
            if let Some(other) = others.iter().find(fits).or(others.last()) {
                stored = other.clone();
            }
        }
        let tied = name == TensorName::Embedding && self.spec.tied_embeddings;
        if tied && !is_stored(&self.shards, &stored.name) {
            let head = self.prefix.name(LM_HEAD);
            if is_stored(&self.shards, &head) {
                stored.name = head;
            }
        }
        stored
    }

    /// What projections and norms would be called that layers do without which read the keys and
    /// values of another; some checkpoints have them.
    fn of_shared_kv(&self) -> HashSet<String> {
        use LayerTensor as L;
        let shared = self.spec.attentions().filter(|(_, a)| a.kv_from.is_some());
        let names = shared.flat_map(|(layer, _)| {
            [L::K, L::V, L::KNorm].map(|tensor| TensorName::Layer(layer, tensor))
        });
        let names = names.map(|name| self.prefix.name(&(self.family.hf_tensor)(name).name));
        names.collect()
    }

    /// How a tensor can be packed: if all that it is stored in can, and alike.
    fn format(&self, name: TensorName) -> Option<WeightFormat> {
        let names = self.place(name).names(&self.spec).into_iter();
        let mut formats = names.map(|tensor| self.quantised.get(&tensor)?.codes.format());
        let first = formats.next()??;
        formats.all(|format| format == Some(first)).then_some(first)
    }

    fn stored(&self, tensor: &str) -> Result<&shards::StoredTensor, ModelError> {
        let missing = || Refusal::MissingTensor(tensor.to_owned()).at(&self.dir);
        self.shards.get(tensor).ok_or_else(missing)
    }
}

/// How checkpoints of a family store a tensor; values whose projection is that of the keys as that.
fn stored_as(family: &Family, spec: &ModelSpec, name: TensorName) -> StoredTensor {
    match name {
        TensorName::Layer(layer, LayerTensor::V) if spec.attention(layer).v_is_k => {
            let keys = (family.hf_tensor)(TensorName::Layer(layer, LayerTensor::K));
            StoredTensor::own(name, keys.name)
        }
        _ => (family.hf_tensor)(name),
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
            return Some(&tensor.shape);
        }
        shards.get(file_name).map(|stored| stored.shape.as_slice())
    }

    fn present(&self) -> Vec<&str> {
        let HfWeights { prefix, spec, .. } = self.weights;
        // Some tied checkpoints store the embedding once more as the output projection.
        let head = spec.tied_embeddings.then(|| prefix.name(LM_HEAD));
        let unused: Vec<_> = self.weights.unused_layers.clone().collect();
        let unused = unused
            .iter()
            .map(|layer| prefix.name(&format!("model.layers.{layer}.")));
        let unused: Vec<_> = unused.collect();
        let shared = self.weights.of_shared_kv();
        let superfluous = |name: &str| {
            is_superfluous(name)
                || shared.contains(name)
                || unused.iter().any(|layer| name.starts_with(layer))
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
        for tensor in self.place(name).names(&self.spec) {
            if !self.quantised.contains_key(&tensor) {
                self.stored(&tensor)?;
            }
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
        if place.is_ones() {
            out.fill(bf16::ONE);
            return Ok(());
        }
        let shape = name.shape(&self.spec);
        let width = row_width(&shape);
        if let Some(columns) = place.columns(&self.spec)
            && !self.quantised.contains_key(&place.name)
        {
            let matrices = match shape[..] {
                [experts, outputs, inputs] => [experts, outputs, inputs],
                // Biases are matrices of one input.
                [experts, outputs] => [experts, outputs, 1],
                _ => unreachable!("only matrices and biases of experts lie by columns"),
            };
            let first = match shape.len() {
                2 => first_row * width,
                _ => first_row,
            };
            return self.read_columns(&place.name, matrices, columns, first, out);
        }
        if place.is_in_halves() {
            let stored = self.stored(&place.name)?;
            let path = self.shards.path(stored);
            let kind = kind(&place.name, stored).map_err(|refusal| refusal.at(path))?;
            let read = fill_halves(
                &place.name,
                (kind, self.shards.data(stored)),
                first_row,
                out,
            );
            return read.map_err(|refusal| refusal.at(path));
        }
        // A vector counts as one row, but its values are what is interleaved.
        if let (Some(order), [_]) = (place.order(&self.spec), &shape[..]) {
            let mut stored = vec![bf16::ZERO; out.len()];
            let whole = Run {
                name: place.name.clone(),
                first: 0,
                step: 1,
                count: 1,
            };
            self.read_run(&whole, &mut stored)?;
            for (row, value) in out.iter_mut().enumerate() {
                *value = stored[order.stored(row)];
            }
            return Ok(());
        }
        let mut rest = out;
        for run in place.runs(&self.spec, first_row, rest.len() / width.max(1)) {
            let out;
            (out, rest) = rest.split_at_mut(run.count * width);
            self.read_run(&run, out)?;
        }
        Ok(())
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, ModelError> {
        Ok(self.formats.get(&name).copied())
    }

    fn done_reading(&self, name: TensorName) {
        let place = self.place(name);
        if !self.in_one.is_read(name, &place.name) {
            return;
        }
        for tensor in place.names(&self.spec) {
            let parts = match self.quantised.get(&tensor) {
                Some(quantised) => quantised.parts.as_slice(),
                None => std::slice::from_ref(&tensor),
            };
            for stored in parts.iter().filter_map(|name| self.shards.get(name)) {
                self.shards.done_reading(stored);
            }
        }
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        mut out: PackedRows<'_>,
    ) -> Result<(), ModelError> {
        let Some(format) = self.formats.get(&name) else {
            unreachable!("the {name} tensor is not packed");
        };
        let width = row_width(&name.shape(&self.spec));
        let place = self.place(name);
        let mut row = 0;
        for run in place.runs(&self.spec, first_row, out.codes.len() / width.max(1)) {
            let Some(InParts { codes, .. }) = self.quantised.get(&run.name) else {
                unreachable!("all of the {name} tensor is quantised");
            };
            // Rows that are neighbours are unpacked together.
            let (times, count) = if run.step == 1 {
                (1, run.count)
            } else {
                (run.count, 1)
            };
            for time in 0..times {
                let rows = out.reborrow().slice(format, width, row, count);
                codes.pack(run.first + time * run.step, rows);
                row += count;
            }
        }
        check_packed(&place.name, format, width, &out).map_err(|refusal| refusal.at(&self.dir))
    }
}

impl HfWeights {
    /// Reads rows of a stored tensor.
    fn read_run(&self, run: &Run, out: &mut [bf16]) -> Result<(), ModelError> {
        let (tensor, first, step) = (&run.name, run.first, run.step);
        if let Some(InParts { codes, .. }) = self.quantised.get(tensor) {
            let mut exact = Vec::new();
            let width = codes.shape()[1];
            let read = fill_rows(tensor, width, out, |row, values| {
                exact.resize(values.len(), 0.0);
                if step == 1 {
                    codes.dequantise(first + row, &mut exact);
                } else {
                    for (row, exact) in (row..).zip(exact.chunks_exact_mut(width)) {
                        codes.dequantise(first + row * step, exact);
                    }
                }
                values.convert_from_f32_slice(&exact);
                Ok(())
            });
            return read.map_err(|refusal: Refusal| refusal.at(&self.dir));
        }
        debug_assert_eq!(step, 1, "plain matrices do not lie by rows in turn");
        let stored = self.stored(tensor)?;
        let path = self.shards.path(stored);
        let kind = kind(tensor, stored).map_err(|refusal| refusal.at(path))?;
        let width = row_width(&stored.shape);
        let row_bytes = width * kind.block_bytes();
        let read = fill_rows(tensor, width, out, |row, values| {
            let from = (first + row) * row_bytes;
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

    /// Reads rows of `[experts, outputs, inputs]` that are `columns` of what is stored,
    /// `[experts, inputs, columns]`.
    fn read_columns(
        &self,
        tensor: &str,
        [_, outputs, inputs]: [usize; 3],
        columns: Columns,
        first: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        let stored = self.stored(tensor)?;
        let path = self.shards.path(stored);
        let kind = kind(tensor, stored).map_err(|refusal| refusal.at(path))?;
        let (data, bytes) = (self.shards.data(stored), kind.block_bytes());
        let mut line = Vec::new();
        let read = fill_rows(tensor, inputs, out, |row, values| {
            let (mut row, mut rest) = (first + row, values);
            while !rest.is_empty() {
                let (expert, output) = (row / outputs, row % outputs);
                let count = (outputs - output).min(rest.len() / inputs);
                let values;
                (values, rest) = rest.split_at_mut(count * inputs);
                line.resize((count - 1) * columns.step + 1, bf16::ZERO);
                let column = columns.first + output * columns.step;
                for input in 0..inputs {
                    let from = (expert * inputs + input) * columns.all + column;
                    dequantize(kind, &data[from * bytes..][..line.len() * bytes], &mut line);
                    let found = line.iter().step_by(columns.step);
                    for (values, value) in values.chunks_exact_mut(inputs).zip(found) {
                        values[input] = *value;
                    }
                }
                row += count;
            }
            Ok(())
        });
        read.map_err(|refusal: Refusal| refusal.at(path))
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
