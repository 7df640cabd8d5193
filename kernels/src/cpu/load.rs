//! Loads a model: every tensor read once, packed by all threads, and let go.

use half::bf16;

use super::gemm::{Columns, PackedMatrix, WeightMemory};
use super::linear::Linear;
use super::packed::{self, QuantisedMatrix};
use super::program::{NamedOp, Op};
use super::threads::{Pool, TaskPanic};
use super::weights::{Embedding, Weights};
use crate::formats::rotation::{RotationError, fold_o, fold_v};
use crate::kv::{KvGeometry, LayoutError};
use crate::model::ops::LinearName;
use crate::model::{
    KeyScaleError, LayerTensor, ModelSpec, QkNorm, SpecError, TensorName, WeightSource,
};
use crate::weight_formats::{PackedRows, WeightFormat};

/// A model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E: std::error::Error + 'static> {
    /// The model's shapes are impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A tensor could not be read.
    #[error("cannot read the {name} tensor: {source}")]
    Source {
        /// Which.
        name: TensorName,
        /// Why.
        source: E,
    },
    /// A tensor does not have the shape that the model's configuration implies.
    #[error(
        "the {name} tensor has shape {actual:?}, the model's configuration implies {expected:?}"
    )]
    Shape {
        /// Which.
        name: TensorName,
        /// The shape needed.
        expected: Vec<usize>,
        /// The shape found.
        actual: Vec<usize>,
    },
    /// The weights do not fit in memory.
    #[error(
        "cannot allocate {bytes} bytes for the weights; use a smaller model or a machine with \
         more memory"
    )]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The KV arena was made for another model.
    #[error("the KV pool has frames of {actual} bytes, this model needs {expected}")]
    Frames {
        /// Bytes of a frame of this model.
        expected: usize,
        /// Bytes of a frame of the arena.
        actual: usize,
    },
    /// The layout of the pages was made for another model.
    #[error("the page layout is for {actual:?}, this model has {expected:?}")]
    Geometry {
        /// This model's KV shape.
        expected: KvGeometry,
        /// The layout's.
        actual: KvGeometry,
    },
    /// No pages of this model can be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// V's rotation was asked for and cannot be had.
    #[error(transparent)]
    Rotation(#[from] RotationError),
    /// Keys cannot be scaled so.
    #[error(transparent)]
    KeyScales(#[from] KeyScaleError),
    /// The compute threads could not be started.
    #[error("cannot start the compute threads")]
    Threads(#[source] std::io::Error),
    /// A compute thread panicked; this is a bug.
    #[error("a compute thread panicked: {0}")]
    Panicked(#[from] TaskPanic),
}

/// What becomes of weights while they are loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// V's Hadamard rotation is folded in.
    pub(super) fold_v: bool,
    /// Packed weights are expanded to bf16.
    pub(super) expand: bool,
}

/// How a part of a linear layer is kept.
enum Part {
    /// In bf16: gate and up, or neighbouring tensors.
    Expanded(Vec<TensorName>),
    /// Packed: gate and up, or one tensor.
    Packed(Vec<(TensorName, WeightFormat)>),
}

impl Part {
    fn bytes(&self, spec: &ModelSpec, is_gated: bool) -> usize {
        match self {
            Self::Expanded(names) => {
                let (inputs, outputs) = shape(spec, names);
                let outputs = if is_gated { outputs / 2 } else { outputs };
                PackedMatrix::bytes(inputs, outputs, is_gated)
            }
            Self::Packed(tensors) => tensors
                .iter()
                .map(|(name, format)| packed_bytes(spec, *name, *format).unwrap_or(0))
                .fold(0, usize::saturating_add),
        }
    }
}

/// Inputs, and outputs of all.
fn shape(spec: &ModelSpec, names: &[TensorName]) -> (usize, usize) {
    let shapes = names.iter().map(|name| name.shape(spec));
    shapes.fold((0, 0), |(_, sum), shape| (shape[1], sum + shape[0]))
}

/// Bytes of a packed tensor, if there is a layout.
fn packed_bytes(spec: &ModelSpec, name: TensorName, format: WeightFormat) -> Option<usize> {
    let shape = name.shape(spec);
    QuantisedMatrix::bytes(format, shape[1], shape[0])
}

/// How a tensor is to be kept packed, if it can.
fn format_of<W: WeightSource>(
    spec: &ModelSpec,
    source: &W,
    how: How,
    name: TensorName,
) -> Result<Option<WeightFormat>, LoadError<W::Error>> {
    use LayerTensor as L;
    // A rotation mixes weights of different groups.
    let is_folded = how.fold_v && matches!(name, TensorName::Layer(_, L::V | L::O));
    if how.expand || is_folded {
        return Ok(None);
    }
    let format = source.packed(name);
    let format = format.map_err(|source| LoadError::Source { name, source })?;
    Ok(format.filter(|format| packed_bytes(spec, name, *format).is_some()))
}

fn parts_of<W: WeightSource>(
    spec: &ModelSpec,
    source: &W,
    how: How,
    linear: LinearName,
) -> Result<Vec<Part>, LoadError<W::Error>> {
    let names = linear.weights(spec);
    let mut tensors = Vec::with_capacity(names.len());
    for name in &names {
        tensors.push((*name, format_of(spec, source, how, *name)?));
    }
    if is_gated(linear) {
        return Ok(vec![match tensors[..] {
            [(gate, Some(a)), (up, Some(b))] if QuantisedMatrix::can_join(a, b) => {
                Part::Packed(vec![(gate, a), (up, b)])
            }
            _ => Part::Expanded(names),
        }]);
    }
    let mut parts = Vec::new();
    for (name, format) in tensors {
        match (format, parts.last_mut()) {
            (Some(format), _) => parts.push(Part::Packed(vec![(name, format)])),
            (None, Some(Part::Expanded(names))) => names.push(name),
            (None, _) => parts.push(Part::Expanded(vec![name])),
        }
    }
    Ok(parts)
}

fn is_gated(linear: LinearName) -> bool {
    matches!(linear, LinearName::GateUp(_))
}

struct Loader<'a, W: WeightSource> {
    spec: &'a ModelSpec,
    source: &'a W,
    pool: &'a mut Pool,
    memory: WeightMemory,
    how: How,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

/// Loads all weights that the program of a valid spec names. `progress(done, total)` counts bytes
/// of bf16.
pub(super) fn load<W: WeightSource>(
    spec: &ModelSpec,
    program: Vec<NamedOp>,
    source: &W,
    pool: &mut Pool,
    how: How,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Weights, LoadError<W::Error>> {
    // All shapes first: a model that does not fit its configuration fails before anything is read.
    let mut total = 0;
    for name in TensorName::all(spec) {
        let expected = name.shape(spec);
        let actual = source
            .shape(name)
            .map_err(|source| LoadError::Source { name, source })?;
        if actual != expected {
            return Err(LoadError::Shape {
                name,
                expected,
                actual,
            });
        }
        total += 2 * expected.iter().product::<usize>() as u64;
    }
    let mut bytes = 0usize;
    for op in &program {
        if let Op::Linear { linear, .. } = op {
            for part in parts_of(spec, source, how, *linear)? {
                bytes = bytes.saturating_add(part.bytes(spec, is_gated(*linear)));
            }
        }
    }
    if !spec.tied_embeddings
        && let Some(format) = format_of(spec, source, how, TensorName::Embedding)?
    {
        let table = packed_bytes(spec, TensorName::Embedding, format);
        bytes = bytes.saturating_add(table.unwrap_or(0));
    }
    let memory = WeightMemory::new(bytes).map_err(|_| LoadError::OutOfMemory { bytes })?;
    let mut loader = Loader {
        spec,
        source,
        pool,
        memory,
        how,
        progress,
        done: 0,
        total,
    };
    loader.load(program)
}

impl<W: WeightSource> Loader<'_, W> {
    /// Loads what each operation names, in order.
    fn load(&mut self, program: Vec<NamedOp>) -> Result<Weights, LoadError<W::Error>> {
        let mut weights = Weights {
            embedding: None,
            linears: Vec::new(),
            norms: Vec::new(),
            qk_norms: Vec::new(),
            ops: Vec::with_capacity(program.len()),
        };
        if !self.spec.tied_embeddings {
            let name = TensorName::Embedding;
            weights.embedding = Some(match format_of(self.spec, self.source, self.how, name)? {
                Some(format) => Embedding::Packed(self.packed(name, format)?),
                None => Embedding::Plain(self.tensor(name)?),
            });
        }
        for op in program {
            weights.ops.push(match op {
                Op::Norm {
                    weight,
                    input,
                    output,
                } => {
                    weights.norms.push(self.vector(weight)?);
                    Op::Norm {
                        weight: weights.norms.len() - 1,
                        input,
                        output,
                    }
                }
                Op::Linear {
                    linear,
                    input,
                    output,
                    then,
                    next,
                } => {
                    weights.linears.push(self.linear(linear)?);
                    Op::Linear {
                        linear: weights.linears.len() - 1,
                        input,
                        output,
                        then,
                        next: next.map(|_| weights.linears.len()),
                    }
                }
                Op::FinishHeads(layer) => {
                    weights.qk_norms.push(self.qk_norm(layer)?);
                    Op::FinishHeads(layer)
                }
                Op::Embed => Op::Embed,
                Op::Attend(layer) => Op::Attend(layer),
                Op::RotateBack => Op::RotateBack,
                Op::Add => Op::Add,
                Op::SelectRows => Op::SelectRows,
            });
        }
        Ok(weights)
    }

    fn linear(&mut self, name: LinearName) -> Result<Linear, LoadError<W::Error>> {
        let (inputs, _) = name.shape(self.spec);
        let mut biases = Vec::new();
        for name in name.biases(self.spec) {
            biases.extend(self.vector(name)?);
        }
        let mut rest = &biases[..];
        let mut bias = |outputs: usize| {
            let (first, others) = rest.split_at_checked(outputs)?;
            rest = others;
            Some(first.to_vec())
        };
        let mut linear = Linear::new(inputs);
        for part in parts_of(self.spec, self.source, self.how, name)? {
            match part {
                Part::Expanded(names) => {
                    let matrix = self.expanded(&names, is_gated(name))?;
                    let bias = bias(matrix.outputs());
                    linear.push_expanded(matrix, bias);
                }
                Part::Packed(tensors) => {
                    let mut matrices = Vec::with_capacity(tensors.len());
                    for (name, format) in tensors {
                        matrices.push(self.packed(name, format)?);
                    }
                    let bias = bias(matrices[0].outputs());
                    let weights = match <[_; 2]>::try_from(matrices) {
                        Ok(both) => packed::Weights::Gated(both),
                        Err(mut one) => packed::Weights::Plain(one.remove(0)),
                    };
                    linear.push_packed(weights, bias);
                }
            }
        }
        Ok(linear)
    }

    /// Reads tensors into one bf16 matrix.
    fn expanded(
        &mut self,
        names: &[TensorName],
        is_gated: bool,
    ) -> Result<PackedMatrix, LoadError<W::Error>> {
        let (inputs, outputs) = shape(self.spec, names);
        let outputs = if is_gated { outputs / 2 } else { outputs };
        let mut matrix = self.memory.matrix(inputs, outputs, is_gated);
        let mut first = 0;
        for name in names {
            let columns = match name {
                TensorName::Layer(_, LayerTensor::Gate) => Columns::Gate,
                TensorName::Layer(_, LayerTensor::Up) => Columns::Up,
                _ => Columns::From(first),
            };
            let rows = self.tensor(*name)?;
            matrix.fill(self.pool, columns, &rows)?;
            first += rows.len() / inputs;
        }
        Ok(matrix)
    }

    /// Reads a tensor as it is packed.
    fn packed(
        &mut self,
        name: TensorName,
        format: WeightFormat,
    ) -> Result<QuantisedMatrix, LoadError<W::Error>> {
        let shape = name.shape(self.spec);
        let mut matrix = QuantisedMatrix::new(&mut self.memory, format, shape[1], shape[0]);
        let source = self.source;
        let read = |first, rows: PackedRows<'_>| source.read_packed(name, first, rows);
        let filled = matrix.fill(self.pool, read)?;
        filled.map_err(|source| LoadError::Source { name, source })?;
        self.finish(name, shape[0] * shape[1]);
        Ok(matrix)
    }

    /// Tells the source and who follows the progress that a tensor was read.
    fn finish(&mut self, name: TensorName, values: usize) {
        self.source.done_reading(name);
        self.done += 2 * values as u64;
        (self.progress)(self.done, self.total);
    }

    #[allow(clippy::type_complexity)]
    fn qk_norm(
        &mut self,
        layer: usize,
    ) -> Result<Option<(Vec<f32>, Vec<f32>)>, LoadError<W::Error>> {
        if self.spec.attention(layer).qk_norm == QkNorm::None {
            return Ok(None);
        }
        let name = |tensor| TensorName::Layer(layer, tensor);
        let q = self.vector(name(LayerTensor::QNorm))?;
        Ok(Some((q, self.vector(name(LayerTensor::KNorm))?)))
    }

    fn vector(&mut self, name: TensorName) -> Result<Vec<f32>, LoadError<W::Error>> {
        Ok(self.tensor(name)?.iter().map(|x| x.to_f32()).collect())
    }

    fn tensor(&mut self, name: TensorName) -> Result<Vec<bf16>, LoadError<W::Error>> {
        let mut tensor = self
            .source
            .load(name)
            .map_err(|source| LoadError::Source { name, source })?;
        self.finish(name, tensor.len());
        if self.how.fold_v {
            self.rotate(name, &mut tensor)?;
        }
        Ok(tensor)
    }

    /// Folds V's rotation into the tensors that produce values and consume their sums.
    fn rotate(&self, name: TensorName, tensor: &mut [bf16]) -> Result<(), RotationError> {
        let (dim, hidden) = (self.spec.heads().head_dim, self.spec.hidden);
        match name {
            TensorName::Layer(_, LayerTensor::V) => fold_v(tensor, dim, hidden),
            TensorName::Layer(_, LayerTensor::VBias) => fold_v(tensor, dim, 1),
            TensorName::Layer(_, LayerTensor::O) => fold_o(tensor, dim),
            _ => Ok(()),
        }
    }
}
