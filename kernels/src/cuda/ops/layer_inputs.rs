//! Inputs of layers beside the residual stream: launches of `cuda/ops/layer_inputs.cu`.

use std::sync::Arc;

use half::bf16;

use super::super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::super::error::CudaError;
use super::super::params::{DevicePtr, KernelParams};
use super::super::step::StepBuffers;
use super::activation_code;
use crate::model::{Activation, ModelSpec};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct LayerInputsParams {
    tokens: DevicePtr,
    sampled: DevicePtr,
    table: DevicePtr,
    norm: DevicePtr,
    inputs: DevicePtr,
    layers: u32,
    width: u32,
    projection_multiplier: f32,
    embedding_multiplier: f32,
    eps: f32,
    norm_from: f32,
}
// SAFETY: field for field `ebb::LayerInputsParams` of ops/layer_inputs.cu.
unsafe impl KernelParams for LayerInputsParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct OpenInputParams {
    gates: DevicePtr,
    inputs: DevicePtr,
    width: u32,
    stride: u32,
    first: u32,
    activation: u32,
}
// SAFETY: field for field `ebb::OpenInputParams` of ops/layer_inputs.cu.
unsafe impl KernelParams for OpenInputParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ScaleParams {
    residual: DevicePtr,
    scale: DevicePtr,
    count: u64,
}
// SAFETY: field for field `ebb::ScaleParams` of ops/layer_inputs.cu.
unsafe impl KernelParams for ScaleParams {}

/// The kernels, for a model.
#[derive(Debug)]
pub(in crate::cuda) struct LayerInputs {
    finish: Kernel<LayerInputsParams>,
    open: Kernel<OpenInputParams>,
    scale: Kernel<ScaleParams>,
    layers: usize,
    width: usize,
    hidden: usize,
    embedding_multiplier: f32,
    eps: f32,
    norm_from: f32,
}

/// Layers of a row that a CTA finishes, a warp each.
const CTA_LAYERS: usize = 8;

impl LayerInputs {
    pub(in crate::cuda) fn new(device: &Arc<Device>, spec: &ModelSpec) -> Result<Self, CudaError> {
        let multiplier = spec
            .per_layer_inputs
            .map(|inputs| inputs.embedding_multiplier);
        Ok(Self {
            finish: device.kernel("layer_inputs", 0)?,
            open: device.kernel("open_layer_input", 0)?,
            scale: device.kernel("scale_residual", 0)?,
            layers: spec.layers.len(),
            width: spec.input_width(),
            hidden: spec.hidden,
            embedding_multiplier: multiplier.unwrap_or(0.0),
            eps: spec.norm_eps,
            norm_from: if spec.norms.from_one { 1.0 } else { 0.0 },
        })
    }

    // SAFETY of every launch below: the buffers are those of the backend, sized for the step's
    // capacity of rows; the step was checked against the vocabulary before it was loaded; work of
    // one stream runs in order.

    /// From projections of embeddings to what each layer gets, `[rows][layers * width]`, in place.
    pub(in crate::cuda) fn finish(
        &self,
        stream: &Stream,
        rows: usize,
        (step, sampled): (&StepBuffers, DevicePtr),
        [table, norm]: [&DeviceBuffer<bf16>; 2],
        inputs: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.layers * self.width <= inputs.len());
        let params = LayerInputsParams {
            tokens: step.tokens(),
            sampled,
            table: table.ptr(),
            norm: norm.ptr(),
            inputs: inputs.ptr(),
            layers: self.layers as u32,
            width: self.width as u32,
            projection_multiplier: (self.hidden as f32).powf(-0.5),
            embedding_multiplier: self.embedding_multiplier,
            eps: self.eps,
            norm_from: self.norm_from,
        };
        let grid = (rows as u32, self.layers.div_ceil(CTA_LAYERS) as u32);
        // SAFETY: see above.
        unsafe {
            self.finish
                .launch(stream, grid, CTA_LAYERS as u32 * 32, &params)
        }
    }

    /// `gates = activation(gates) ⊙ inputs` of a layer, `[rows][width]`.
    pub(in crate::cuda) fn open(
        &self,
        stream: &Stream,
        rows: usize,
        (layer, activation): (usize, Activation),
        inputs: &DeviceBuffer<bf16>,
        gates: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.width <= gates.len());
        let params = OpenInputParams {
            gates: gates.ptr(),
            inputs: inputs.ptr(),
            width: self.width as u32,
            stride: (self.layers * self.width) as u32,
            first: (layer * self.width) as u32,
            activation: activation_code(activation),
        };
        // SAFETY: see above.
        unsafe { self.open.launch(stream, (rows as u32, 1), 256, &params) }
    }

    /// Multiplies the residual stream by a number.
    pub(in crate::cuda) fn scale(
        &self,
        stream: &Stream,
        rows: usize,
        scale: &DeviceBuffer<bf16>,
        residual: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        let count = rows * self.hidden;
        assert!(count <= residual.len());
        let params = ScaleParams {
            residual: residual.ptr(),
            scale: scale.ptr(),
            count: count as u64,
        };
        let grid_max = 8 * stream.device().multiprocessors();
        let grid = count.div_ceil(1024).clamp(1, grid_max) as u32;
        // SAFETY: see above.
        unsafe { self.scale.launch(stream, (grid, 1), 256, &params) }
    }
}
