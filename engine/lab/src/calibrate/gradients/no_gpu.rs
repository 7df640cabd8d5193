//! Stands in for `gpu.rs` in programs without the CUDA backend.

use ebb_gradients::LayerGradients;
use ebb_models::model::LoadedModel;
use ebb_serving::device::{CudaDevice, DeviceError};

use super::{GradientsError, Probes};

/// A model on a GPU; there is none.
#[derive(Debug)]
pub enum GpuGradients {}

impl GpuGradients {
    pub(super) fn open(_: &CudaDevice, _: &LoadedModel) -> Result<Self, DeviceError> {
        Err(DeviceError::NotBuilt)
    }

    pub(super) fn run(
        &mut self,
        _: &[u32],
        _: usize,
        _: &mut (dyn FnMut(usize, LayerGradients) + Send),
    ) -> Result<f64, DeviceError> {
        match *self {}
    }

    pub(super) fn attentions<E: From<GradientsError>>(
        &mut self,
        _: &[&[u32]],
        _: usize,
        _: &mut dyn FnMut(usize, &mut dyn Probes) -> Result<(), E>,
    ) -> Result<(), E> {
        match *self {}
    }
}
