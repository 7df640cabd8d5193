//! The norms around a layer of experts, joined to it: fewer launches, and the same bits but for a
//! router's scores, whose sums have another order. So batch-invariant steps leave the norm before
//! apart.

use std::sync::Arc;

use half::bf16;

use super::{COMBINE_THREADS, CombineParams, Experts, Run};
use crate::cuda::driver::{Device, DeviceBuffer, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::ops::{Delta, NormForm, NormWeights};
use crate::cuda::params::{DevicePtr, KernelParams};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct CombineNormParams {
    combine: CombineParams,
    delta: DevicePtr,
    delta_bias: DevicePtr,
    residual: DevicePtr,
    weight: DevicePtr,
    bias: DevicePtr,
    normed: DevicePtr,
    form: NormForm,
}
// SAFETY: field for field `ebb::CombineNormParams` of experts/combine.cu.
unsafe impl KernelParams for CombineNormParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct NormedRouterParams {
    delta: DevicePtr,
    delta_bias: DevicePtr,
    residual: DevicePtr,
    weight: DevicePtr,
    bias: DevicePtr,
    normed: DevicePtr,
    router: DevicePtr,
    scores: DevicePtr,
    form: NormForm,
    rows: u32,
    hidden: u32,
    experts: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::NormedRouterParams` of experts/normed_router.cu.
unsafe impl KernelParams for NormedRouterParams {}

/// Most rows whose norm is joined to their router's product: a CTA takes them one by one.
const NORMED_ROWS: usize = 4;
/// Experts of a CTA of that kernel, a warp each.
const NORMED_EXPERTS: usize = 8;

/// Norms around a layer of experts.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct ExpertNorms<'a> {
    pub(in crate::cuda) before: Option<NormBefore<'a>>,
    /// Of the residual stream, once what the experts put out has been added to it.
    pub(in crate::cuda) after: NormWeights,
    pub(in crate::cuda) form: NormForm,
    /// `[rows][hidden]`.
    pub(in crate::cuda) residual: &'a DeviceBuffer<f32>,
    /// `[rows][hidden]`: what experts read; then what `after` makes.
    pub(in crate::cuda) normed: &'a DeviceBuffer<bf16>,
}

/// The norm that makes what experts and their router read.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct NormBefore<'a> {
    /// What is added to the residual stream first.
    pub(in crate::cuda) delta: Option<Delta<'a>>,
    pub(in crate::cuda) weights: NormWeights,
}

/// The kernels for a hidden size.
#[derive(Debug)]
pub(super) struct NormKernels {
    combine: Kernel<CombineNormParams>,
    /// None for a hidden size that there is none for.
    router: Option<Kernel<NormedRouterParams>>,
}

impl NormKernels {
    pub(super) fn new(device: &Arc<Device>, hidden: usize) -> Result<Self, CudaError> {
        let (combine, router) = match hidden {
            ..=2048 => ("experts_combine_norm_2048", Some("normed_router_2048")),
            2049..=4096 => ("experts_combine_norm_4096", Some("normed_router_4096")),
            4097..=8192 => ("experts_combine_norm_8192", Some("normed_router_8192")),
            _ => ("experts_combine_norm_16384", None),
        };
        Ok(Self {
            combine: device.kernel(combine, 0)?,
            router: router.map(|name| device.kernel(name, 0)).transpose()?,
        })
    }
}

impl Experts {
    /// Whether the norm before a layer can be joined to it for so many rows.
    pub(in crate::cuda) fn joins_norm_before(&self, rows: usize) -> bool {
        rows <= NORMED_ROWS && self.norms.router.is_some()
    }

    /// Enqueues the norm before a layer and its router's product.
    pub(super) fn normed_router(
        &self,
        stream: &Stream,
        of: &Run<'_>,
        (norms, before): (ExpertNorms<'_>, NormBefore<'_>),
    ) -> Result<(), CudaError> {
        let Some(kernel) = &self.norms.router else {
            unreachable!("asked for first");
        };
        let values = of.rows * of.hidden;
        assert!(values <= norms.residual.len().min(norms.normed.len()));
        assert!(
            before
                .delta
                .is_none_or(|delta| values <= delta.values.len())
        );
        assert!(of.rows * of.spec.experts <= self.scores.len());
        let params = NormedRouterParams {
            delta: before.delta.map_or(0, |delta| delta.values.ptr()),
            delta_bias: before.delta.map_or(0, |delta| delta.bias),
            residual: norms.residual.ptr(),
            weight: before.weights.weight,
            bias: before.weights.bias,
            normed: norms.normed.ptr(),
            router: of.weights.router.ptr(),
            scores: self.scores.ptr(),
            form: norms.form,
            rows: of.rows as u32,
            hidden: of.hidden as u32,
            experts: of.spec.experts as u32,
            reserved: 0,
        };
        let ctas = of.spec.experts.div_ceil(NORMED_EXPERTS);
        // SAFETY: as for the launches of `Experts::run`.
        unsafe { kernel.launch(stream, (ctas as u32, 1), COMBINE_THREADS, &params) }
    }

    /// Enqueues the sum of what a row's experts have put out, and the norm after it.
    pub(super) fn combine_norm(
        &self,
        stream: &Stream,
        of: &Run<'_>,
        combine: CombineParams,
        norms: ExpertNorms<'_>,
    ) -> Result<(), CudaError> {
        assert!(of.rows * of.hidden <= norms.residual.len().min(norms.normed.len()));
        // Without a norm before it that has not been added yet.
        let delta = norms.before.and_then(|before| before.delta);
        assert!(delta.is_none_or(|delta| of.rows * of.hidden <= delta.values.len()));
        let params = CombineNormParams {
            combine,
            delta: delta.map_or(0, |delta| delta.values.ptr()),
            delta_bias: delta.map_or(0, |delta| delta.bias),
            residual: norms.residual.ptr(),
            weight: norms.after.weight,
            bias: norms.after.bias,
            normed: norms.normed.ptr(),
            form: norms.form,
        };
        let grid = (of.rows as u32, 1);
        // SAFETY: as for the launches of `Experts::run`.
        unsafe {
            self.norms
                .combine
                .launch(stream, grid, COMBINE_THREADS, &params)
        }
    }
}
