//! Why a model cannot be loaded.

use crate::cpu::threads::TaskPanic;
use crate::formats::rotation::RotationError;
use crate::kv::{KvGeometry, LayoutError};
use crate::model::{KeyScaleError, SpecError, TensorName};

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
