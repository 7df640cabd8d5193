//! Stands in for `cuda.rs` in programs without the CUDA backend: there is no such device.

use ebb_kernels::backend::Backend;
use ebb_kernels::kv::KvLayout;
use ebb_kernels::model::ModelSpec;
use ebb_models::model::LoadedModel;

use super::{BackendOptions, Budget, DeviceError, StepSizes};

/// A GPU; this program cannot have one.
#[derive(Debug, Clone)]
pub enum CudaDevice {}

impl CudaDevice {
    pub(super) fn open(_ordinal: usize) -> Result<Self, DeviceError> {
        Err(DeviceError::NotBuilt)
    }

    pub(super) fn description(&self) -> String {
        match *self {}
    }

    pub(super) fn check_pages(&self, _: &KvLayout) -> Result<(), DeviceError> {
        match *self {}
    }

    pub(super) fn in_use(&self) -> Option<u64> {
        match *self {}
    }

    pub(super) fn name(&self) -> String {
        match *self {}
    }

    /// What a backend for steps of these sizes leaves to the KV cache.
    ///
    /// # Errors
    /// Never: there is no such device.
    pub fn budget(
        &self,
        _: &LoadedModel,
        _: bool,
        _: &StepSizes,
        _: f64,
    ) -> Result<Budget, DeviceError> {
        match *self {}
    }

    /// Of bytes for the KV cache, those of its pool.
    pub fn pool_bytes(&self, _: &ModelSpec, _: &StepSizes, _: &KvLayout, _: u64) -> u64 {
        match *self {}
    }

    pub(super) fn backend(
        &self,
        _: &LoadedModel,
        _: u32,
        _: &BackendOptions,
        _: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Backend>, DeviceError> {
        match *self {}
    }
}
