//! Loads a model: every tensor read once, packed by all threads, and let go.

use half::bf16;

use super::gemm::{Columns, PANEL, PackedMatrix, WeightMemory};
use super::threads::{Pool, TaskPanic};
use crate::formats::rotation::{RotationError, fold_o, fold_v};
use crate::kv::{KvGeometry, LayoutError};
use crate::model::{LayerTensor, SpecError, TensorName, TransformerSpec, WeightSource};

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
        "cannot allocate {bytes} bytes for the weights; use a smaller model or a machine with more memory"
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
    /// The compute threads could not be started.
    #[error("cannot start the compute threads")]
    Threads(#[source] std::io::Error),
    /// A compute thread panicked; this is a bug.
    #[error("a compute thread panicked: {0}")]
    Panicked(#[from] TaskPanic),
}

/// A layer's weights.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attn_norm: Vec<f32>,
    /// Queries, keys and values side by side.
    pub(super) qkv: PackedMatrix,
    /// Padded to whole panels.
    pub(super) qkv_bias: Option<Vec<f32>>,
    /// Query norm, key norm.
    pub(super) qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    pub(super) o: PackedMatrix,
    pub(super) mlp_norm: Vec<f32>,
    pub(super) gate_up: PackedMatrix,
    pub(super) down: PackedMatrix,
}

/// A model's weights.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab][hidden]`; none if it is the output projection too.
    pub(super) embedding: Option<Vec<bf16>>,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Vec<f32>,
    pub(super) lm_head: PackedMatrix,
}

/// Bytes that the packed matrices of a model take.
fn packed_bytes(spec: &TransformerSpec) -> usize {
    let matrix = PackedMatrix::bytes;
    let layer = matrix(spec.hidden, spec.q_width() + 2 * spec.kv_width(), false)
        + matrix(spec.q_width(), spec.hidden, false)
        + matrix(spec.hidden, spec.intermediate, true)
        + matrix(spec.intermediate, spec.hidden, false);
    layer
        .saturating_mul(spec.layers)
        .saturating_add(matrix(spec.hidden, spec.vocab, false))
}

struct Loader<'a, W: WeightSource> {
    spec: &'a TransformerSpec,
    source: &'a W,
    pool: &'a mut Pool,
    memory: WeightMemory,
    rotate_v: bool,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

/// Loads all weights of a valid spec, with V's Hadamard rotation folded in if `rotate_v`.
/// `progress(done, total)` counts bytes of bf16.
pub(super) fn load<W: WeightSource>(
    spec: &TransformerSpec,
    source: &W,
    pool: &mut Pool,
    rotate_v: bool,
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
    let bytes = packed_bytes(spec);
    let memory = WeightMemory::new(bytes).map_err(|_| LoadError::OutOfMemory { bytes })?;
    let mut loader = Loader {
        spec,
        source,
        pool,
        memory,
        rotate_v,
        progress,
        done: 0,
        total,
    };
    loader.load()
}

impl<W: WeightSource> Loader<'_, W> {
    fn load(&mut self) -> Result<Weights, LoadError<W::Error>> {
        let spec = self.spec;
        let tied = spec.tied_embeddings;
        let mut lm_head = self.memory.matrix(spec.hidden, spec.vocab, false);
        let embedding = self.tensor(TensorName::Embedding)?;
        let embedding = if tied {
            lm_head.fill(self.pool, Columns::From(0), &embedding)?;
            None
        } else {
            Some(embedding)
        };
        let layers = (0..spec.layers)
            .map(|layer| self.layer(layer))
            .collect::<Result<_, _>>()?;
        let final_norm = self.vector(TensorName::FinalNorm)?;
        if !tied {
            self.fill(&mut lm_head, Columns::From(0), TensorName::LmHead)?;
        }
        Ok(Weights {
            embedding,
            layers,
            final_norm,
            lm_head,
        })
    }

    fn layer(&mut self, layer: usize) -> Result<Layer, LoadError<W::Error>> {
        use LayerTensor as L;
        let spec = self.spec;
        let name = |tensor| TensorName::Layer(layer, tensor);
        let (q, kv) = (spec.q_width(), spec.kv_width());

        let mut qkv = self.memory.matrix(spec.hidden, q + 2 * kv, false);
        self.fill(&mut qkv, Columns::From(0), name(L::Q))?;
        self.fill(&mut qkv, Columns::From(q), name(L::K))?;
        self.fill(&mut qkv, Columns::From(q + kv), name(L::V))?;
        let mut qkv_bias = None;
        if spec.qkv_bias {
            let mut bias = self.vector(name(L::QBias))?;
            bias.extend(self.vector(name(L::KBias))?);
            bias.extend(self.vector(name(L::VBias))?);
            bias.resize(bias.len().next_multiple_of(PANEL), 0.0);
            qkv_bias = Some(bias);
        }
        let mut qk_norm = None;
        if spec.qk_norm {
            qk_norm = Some((self.vector(name(L::QNorm))?, self.vector(name(L::KNorm))?));
        }
        let mut o = self.memory.matrix(q, spec.hidden, false);
        self.fill(&mut o, Columns::From(0), name(L::O))?;
        let mut gate_up = self.memory.matrix(spec.hidden, spec.intermediate, true);
        self.fill(&mut gate_up, Columns::Gate, name(L::Gate))?;
        self.fill(&mut gate_up, Columns::Up, name(L::Up))?;
        let mut down = self.memory.matrix(spec.intermediate, spec.hidden, false);
        self.fill(&mut down, Columns::From(0), name(L::Down))?;
        Ok(Layer {
            attn_norm: self.vector(name(L::AttnNorm))?,
            qkv,
            qkv_bias,
            qk_norm,
            o,
            mlp_norm: self.vector(name(L::MlpNorm))?,
            gate_up,
            down,
        })
    }

    fn fill(
        &mut self,
        matrix: &mut PackedMatrix,
        columns: Columns,
        name: TensorName,
    ) -> Result<(), LoadError<W::Error>> {
        let rows = self.tensor(name)?;
        Ok(matrix.fill(self.pool, columns, &rows)?)
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
        if self.rotate_v {
            self.rotate(name, &mut tensor)?;
        }
        Ok(tensor)
    }

    /// Folds V's rotation into the tensors that produce values and consume their sums.
    fn rotate(&self, name: TensorName, tensor: &mut [bf16]) -> Result<(), RotationError> {
        let (dim, hidden) = (self.spec.head_dim, self.spec.hidden);
        match name {
            TensorName::Layer(_, LayerTensor::V) => fold_v(tensor, dim, hidden),
            TensorName::Layer(_, LayerTensor::VBias) => fold_v(tensor, dim, 1),
            TensorName::Layer(_, LayerTensor::O) => fold_o(tensor, dim),
            _ => Ok(()),
        }
    }
}
