//! Gradients by the CUDA backend.

use ebb_gradients::{Cached, LayerGradients};
use ebb_kernels::cuda::{Attentions, CachedGradients, CudaError, Gradients};
use ebb_models::model::LoadedModel;
use ebb_serving::device::{CudaDevice, DeviceError};

use super::{GradientsError, Probes};

/// A model on a GPU whose loss gradients can be had.
#[derive(Debug)]
pub struct GpuGradients {
    device: CudaDevice,
    gradients: Gradients,
}

impl GpuGradients {
    /// Loads the model's weights.
    pub(super) fn open(device: &CudaDevice, model: &LoadedModel) -> Result<Self, DeviceError> {
        Ok(Self {
            gradients: device.gradients(model)?,
            device: device.clone(),
        })
    }

    /// As [`ebb_gradients::gradients`], of at least two tokens.
    pub(super) fn run(
        &mut self,
        tokens: &[u32],
        stride: usize,
        visit: &mut (dyn FnMut(usize, LayerGradients) + Send),
    ) -> Result<f64, DeviceError> {
        let cached = |c: CachedGradients| Cached {
            values: c.values,
            gradients: c.gradients,
        };
        let mut each = |layer: usize, found: ebb_kernels::cuda::LayerGradients| {
            visit(
                layer,
                LayerGradients {
                    w_k: found.w_k,
                    w_v: found.w_v,
                    k: cached(found.k),
                    v: cached(found.v),
                },
            );
        };
        let run = self.gradients.run(tokens, stride, &mut each);
        run.map_err(|e| self.device.failed(&e))
    }

    /// Every layer's attention over some texts.
    pub(super) fn attentions<E: From<GradientsError>>(
        &mut self,
        texts: &[&[u32]],
        stride: usize,
        visit: &mut dyn FnMut(usize, &mut dyn Probes) -> Result<(), E>,
    ) -> Result<(), E> {
        let device = &self.device;
        let of = |error: CudaError| GradientsError::from(device.failed(&error));
        let mut each = |layer: usize, attentions: &mut Attentions<'_>| {
            let mut probes = GpuProbes {
                device,
                attentions,
                texts: texts.len(),
            };
            visit(layer, &mut probes).map_err(Failure::Visitor)
        };
        let run = self.gradients.attentions(texts, stride, &mut each);
        run.map_err(|failure| match failure {
            Failure::Device(error) => of(error).into(),
            Failure::Visitor(error) => error,
        })
    }
}

/// Why a run ended early.
enum Failure<E> {
    Device(CudaError),
    Visitor(E),
}

impl<E> From<CudaError> for Failure<E> {
    fn from(error: CudaError) -> Self {
        Self::Device(error)
    }
}

/// A layer's attention over so many texts.
struct GpuProbes<'a, 'b> {
    device: &'a CudaDevice,
    attentions: &'a mut Attentions<'b>,
    texts: usize,
}

impl Probes for GpuProbes<'_, '_> {
    fn texts(&self) -> usize {
        self.texts
    }

    fn keys(&self, text: usize) -> &[f32] {
        self.attentions.keys(text)
    }

    fn output(&mut self, text: usize, keys: &[f32]) -> Result<Vec<f32>, GradientsError> {
        let output = self.attentions.output(text, keys);
        output.map_err(|e| self.device.failed(&e).into())
    }
}
