//! Loads a model: every tensor read once, packed by all threads, and let go.

use half::bf16;

use super::gemm::{Columns, PackedMatrix, WeightMemory};
use super::linear::Linear;
use super::program::{LoadedOp, NamedOp, Op};
use super::threads::{Pool, TaskPanic};
use crate::formats::rotation::{RotationError, fold_o, fold_v};
use crate::kv::{KvGeometry, LayoutError};
use crate::model::ops::LinearName;
use crate::model::{
    KeyScaleError, LayerTensor, ModelSpec, QkNorm, SpecError, TensorName, WeightSource,
};

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

/// A model's weights, and the program that refers to them by index.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab][hidden]`; none if it is the output projection too, the last linear layer.
    pub(super) embedding: Option<Vec<bf16>>,
    pub(super) linears: Vec<Linear>,
    pub(super) norms: Vec<Vec<f32>>,
    /// Of each layer: query norm, key norm.
    pub(super) qk_norms: Vec<Option<(Vec<f32>, Vec<f32>)>>,
    pub(super) ops: Vec<LoadedOp>,
}

impl Weights {
    /// The embedding of a token.
    pub(super) fn embed(&self, token: usize, out: &mut [f32]) {
        match &self.embedding {
            Some(table) => {
                let values = &table[token * out.len()..][..out.len()];
                out.iter_mut()
                    .zip(values)
                    .for_each(|(x, v)| *x = v.to_f32());
            }
            None => {
                let lm_head = self.linears.last().expect("a program ends with the logits");
                lm_head.column(token, out);
            }
        }
    }
}

/// Inner dimension, outputs, and whether outputs are gated, of a linear layer's packed matrix.
fn packed_shape(linear: LinearName, spec: &ModelSpec) -> (usize, usize, bool) {
    let (inputs, outputs) = linear.shape(spec);
    match linear {
        LinearName::GateUp(_) => (inputs, outputs / 2, true),
        _ => (inputs, outputs, false),
    }
}

struct Loader<'a, W: WeightSource> {
    spec: &'a ModelSpec,
    source: &'a W,
    pool: &'a mut Pool,
    memory: WeightMemory,
    fold_v: bool,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

/// Loads all weights that the program of a valid spec names, with V's Hadamard rotation folded in
/// if `fold_v`. `progress(done, total)` counts bytes of bf16.
pub(super) fn load<W: WeightSource>(
    spec: &ModelSpec,
    program: Vec<NamedOp>,
    source: &W,
    pool: &mut Pool,
    fold_v: bool,
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
    let linears = program.iter().filter_map(|op| match op {
        Op::Linear { linear, .. } => Some(*linear),
        _ => None,
    });
    let bytes = linears.fold(0usize, |sum, linear| {
        let (inputs, outputs, gated) = packed_shape(linear, spec);
        sum.saturating_add(PackedMatrix::bytes(inputs, outputs, gated))
    });
    let memory = WeightMemory::new(bytes).map_err(|_| LoadError::OutOfMemory { bytes })?;
    let mut loader = Loader {
        spec,
        source,
        pool,
        memory,
        fold_v,
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
            weights.embedding = Some(self.tensor(TensorName::Embedding)?);
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

    fn linear(&mut self, linear: LinearName) -> Result<Linear, LoadError<W::Error>> {
        let (inputs, outputs, gated) = packed_shape(linear, self.spec);
        let mut matrix = self.memory.matrix(inputs, outputs, gated);
        let mut first = 0;
        for name in linear.weights(self.spec) {
            let columns = match name {
                TensorName::Layer(_, LayerTensor::Gate) => Columns::Gate,
                TensorName::Layer(_, LayerTensor::Up) => Columns::Up,
                _ => Columns::From(first),
            };
            let rows = self.tensor(name)?;
            matrix.fill(self.pool, columns, &rows)?;
            first += rows.len() / inputs;
        }
        let mut bias = None;
        for name in linear.biases(self.spec) {
            bias.get_or_insert_with(Vec::new).extend(self.vector(name)?);
        }
        Ok(Linear::new(matrix, bias))
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
        self.done += 2 * tensor.len() as u64;
        (self.progress)(self.done, self.total);
        if self.fold_v {
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
