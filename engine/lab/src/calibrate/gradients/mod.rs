//! A model's loss gradients: by the gradient crate on the CPU, by the CUDA backend on a GPU. Both
//! compute in f32 with weights rounded to bf16, as they are served.

#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
mod gpu;
#[cfg(not(any(feature = "cuda", feature = "cuda-emulator")))]
#[path = "no_gpu.rs"]
mod gpu;

use ebb_gradients::{Attention, LayerGradients, Weights};
use ebb_kernels::bf16;
use ebb_kernels::model::{ModelSpec, TensorName, WeightSource};
use thiserror::Error;

use ebb_models::model::LoadedModel;
use ebb_serving::device::{Device, DeviceError};
pub use gpu::GpuGradients;

/// Gradients cannot be had.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct GradientsError(Box<dyn std::error::Error + Send + Sync>);

impl GradientsError {
    /// Of a run of the gradient crate.
    pub(super) fn of(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

impl From<DeviceError> for GradientsError {
    fn from(error: DeviceError) -> Self {
        Self::of(error)
    }
}

/// What computes the gradients of a model.
#[derive(Debug)]
pub enum Gradients<'a> {
    /// Cores of this machine.
    Cpu {
        /// The model; its weights are read as they are needed.
        model: &'a LoadedModel,
        /// How many.
        threads: usize,
    },
    /// A GPU that holds the weights.
    Gpu(Box<GpuGradients>),
}

impl<'a> Gradients<'a> {
    /// Prepares a device; one that is a GPU loads the model's weights and shows progress on a
    /// terminal.
    ///
    /// # Errors
    /// When they cannot be read, or do not fit.
    pub fn open(
        device: &Device,
        model: &'a LoadedModel,
        threads: usize,
    ) -> Result<Self, GradientsError> {
        Ok(match device {
            Device::Cpu => Self::Cpu { model, threads },
            Device::Cuda(device) => Self::Gpu(Box::new(GpuGradients::open(device, model)?)),
        })
    }

    /// Gradients of one text, at positions 0, `stride`, 2 `stride`, …; see
    /// [`ebb_gradients::gradients`].
    ///
    /// # Errors
    /// When the weights cannot be read, or memory is short.
    pub fn run(
        &mut self,
        tokens: &[u32],
        stride: usize,
        visit: &mut (dyn FnMut(usize, LayerGradients) + Send),
    ) -> Result<f64, GradientsError> {
        match self {
            Self::Cpu { model, threads } => {
                let (spec, weights) = (&model.spec, &model.weights());
                let source = Source { spec, weights };
                ebb_gradients::gradients(spec, &source, tokens, stride, *threads, visit)
                    .map_err(GradientsError::of)
            }
            Self::Gpu(gradients) => {
                if tokens.len() < 2 {
                    let none = ebb_gradients::Error::<std::convert::Infallible>::TooShort;
                    return Err(GradientsError::of(none));
                }
                Ok(gradients.run(tokens, stride, visit)?)
            }
        }
    }

    /// Every layer's attention over some texts, the first layer first, to be computed again with
    /// other keys.
    ///
    /// # Errors
    /// As for [`Self::run`], or the first that `visit` returns.
    pub fn attentions<E: From<GradientsError> + Send>(
        &mut self,
        texts: &[&[u32]],
        stride: usize,
        visit: &mut (dyn FnMut(usize, &mut dyn Probes) -> Result<(), E> + Send),
    ) -> Result<(), E> {
        match self {
            Self::Cpu { model, threads } => {
                let (spec, weights) = (&model.spec, &model.weights());
                let source = Source { spec, weights };
                let mut result = Ok(());
                let mut each = |layer: usize, probes: &[Attention<'_>]| {
                    if result.is_ok() {
                        result = visit(layer, &mut OnCores(probes));
                    }
                };
                ebb_gradients::attentions(spec, &source, texts, stride, *threads, &mut each)
                    .map_err(GradientsError::of)?;
                result
            }
            Self::Gpu(gradients) => gradients.attentions(texts, stride, visit),
        }
    }
}

/// A layer's attention over some texts.
pub trait Probes {
    /// How many texts.
    fn texts(&self) -> usize;

    /// A text's keys after RoPE, `[kv_heads][tokens][head_dim]`.
    fn keys(&self, text: usize) -> &[f32];

    /// What attention over a text adds to the residual stream, `[tokens][hidden]`, if the cache
    /// held these keys, as many as [`Self::keys`].
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    fn output(&mut self, text: usize, keys: &[f32]) -> Result<Vec<f32>, GradientsError>;
}

/// Of the gradient crate.
struct OnCores<'a>(&'a [Attention<'a>]);

impl Probes for OnCores<'_> {
    fn texts(&self) -> usize {
        self.0.len()
    }

    fn keys(&self, text: usize) -> &[f32] {
        self.0[text].keys()
    }

    fn output(&mut self, text: usize, keys: &[f32]) -> Result<Vec<f32>, GradientsError> {
        self.0[text].output(keys).map_err(GradientsError::of)
    }
}

/// Weights read from wherever the backends read theirs, rounded to bf16 like theirs.
#[derive(Debug)]
pub struct Source<'a, W> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// Its weights.
    pub weights: &'a W,
}

impl<W: WeightSource> Weights for Source<'_, W> {
    type Error = W::Error;

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, W::Error> {
        let mut row = vec![bf16::ZERO; self.spec.hidden];
        let mut all = Vec::with_capacity(tokens.len() * row.len());
        for token in tokens {
            self.weights
                .read_rows(TensorName::Embedding, *token as usize, &mut row)?;
            all.extend(row.iter().map(|x| x.to_f32()));
        }
        Ok(all)
    }

    fn tensor(&self, name: TensorName) -> Result<Vec<f32>, W::Error> {
        let values = self.weights.load(name)?;
        Ok(values.into_iter().map(bf16::to_f32).collect())
    }
}
