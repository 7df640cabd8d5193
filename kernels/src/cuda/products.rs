//! Matrix products: cuBLASLt's, and a kernel of our own for the few rows where reading the weights is everything.

use std::collections::HashMap;
use std::sync::Arc;

use super::driver::{Device, Event, Gemm, Kernel, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, GemmShape, KernelParams};

/// Rows that the skinny kernel takes: the n side of its matrix instruction.
const SKINNY_ROWS: usize = 8;
/// Outputs of a CTA of the skinny kernel.
const SKINNY_OUTPUTS: usize = 16;
/// Inputs of a step of the skinny kernel.
const SKINNY_INPUTS: usize = 32;
/// Threads of a CTA of the skinny kernel.
const SKINNY_THREADS: u32 = 256;
/// Timed runs of each way when tuning.
const TUNING_RUNS: usize = 5;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SkinnyParams {
    x: DevicePtr,
    w: DevicePtr,
    y: DevicePtr,
    rows: u32,
    inputs: u32,
    outputs: u32,
    wide: u32,
}
// SAFETY: field for field `ebb::SkinnyParams` of product/skinny.cu.
unsafe impl KernelParams for SkinnyParams {}

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By cuBLASLt.
    Library,
    /// By the kernel for few rows.
    Skinny,
}

/// Computes `y = x · wᵀ` the faster way.
#[derive(Debug)]
pub(super) struct Products {
    gemm: Gemm,
    /// Only the library is used, with one algorithm for all rows.
    invariant: bool,
    skinny: Kernel<SkinnyParams>,
    /// The faster way, where both were measured.
    measured: HashMap<GemmShape, Way>,
}

impl Products {
    /// `invariant`: a row's results do not depend on how many rows there are.
    pub(super) fn new(device: &Arc<Device>, invariant: bool) -> Result<Self, CudaError> {
        Ok(Self {
            gemm: Gemm::new(device, invariant)?,
            invariant,
            skinny: device.kernel("product_skinny", 0)?,
            measured: HashMap::new(),
        })
    }

    /// Whether a way can run a shape.
    pub(super) fn can(way: Way, shape: GemmShape) -> bool {
        way == Way::Library
            || shape.rows <= SKINNY_ROWS
                && shape.inputs.is_multiple_of(SKINNY_INPUTS)
                && shape.outputs.is_multiple_of(SKINNY_OUTPUTS)
    }

    fn way(&self, shape: GemmShape) -> Way {
        if self.invariant {
            return Way::Library;
        }
        match self.measured.get(&shape) {
            Some(way) => *way,
            None if Self::can(Way::Skinny, shape) => Way::Skinny,
            None => Way::Library,
        }
    }

    /// Makes what running this shape needs, so that it can be recorded.
    pub(super) fn prepare(&mut self, shape: GemmShape) -> Result<(), CudaError> {
        match self.way(shape) {
            Way::Skinny => Ok(()),
            Way::Library => self.gemm.prepare(shape),
        }
    }

    /// Enqueues `y = x · wᵀ`: `x` `[rows][inputs]` and `w` `[outputs][inputs]` bf16, `y` `[rows][outputs]` bf16 or f32.
    ///
    /// # Safety
    /// The addresses must hold matrices of that shape until the stream has run this, and `y` must overlap neither input.
    pub(super) unsafe fn run(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        w: DevicePtr,
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.run_as(self.way(shape), stream, shape, x, w, y) }
    }

    /// [`Products::run`] in a chosen way, which must be able to.
    ///
    /// # Safety
    /// As for [`Products::run`].
    pub(super) unsafe fn run_as(
        &mut self,
        way: Way,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        w: DevicePtr,
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        assert!(Self::can(way, shape), "{way:?} cannot run {shape:?}");
        if way == Way::Library {
            // SAFETY: the caller's.
            return unsafe { self.gemm.run(stream, shape, x, w, y) };
        }
        let params = SkinnyParams {
            x,
            w,
            y,
            rows: shape.rows as u32,
            inputs: shape.inputs as u32,
            outputs: shape.outputs as u32,
            wide: u32::from(shape.wide),
        };
        let grid = (shape.outputs / SKINNY_OUTPUTS) as u32;
        // SAFETY: the caller's.
        unsafe {
            self.skinny
                .launch(stream, (grid, 1), SKINNY_THREADS, &params)
        }
    }

    /// Measures a shape on real weights (several, so that none is in the cache) and keeps the fastest way of running it.
    ///
    /// # Safety
    /// As for [`Products::run`], for each of the weights; `y` is overwritten.
    pub(super) unsafe fn tune(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        weights: &[DevicePtr],
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.gemm.tune(stream, shape, x, weights, y)? };
        if !Self::can(Way::Skinny, shape) {
            return Ok(());
        }
        let (start, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
        let mut best = [(f64::INFINITY, Way::Skinny), (f64::INFINITY, Way::Library)];
        for run in 0..TUNING_RUNS {
            let w = weights[run % weights.len()];
            for (best, way) in &mut best {
                start.record(stream)?;
                // SAFETY: the caller's.
                unsafe { self.run_as(*way, stream, shape, x, w, y)? };
                end.record(stream)?;
                stream.synchronize()?;
                *best = best.min(end.micros_since(&start)?);
            }
        }
        let [skinny, library] = best;
        let faster = if skinny.0 <= library.0 {
            skinny.1
        } else {
            library.1
        };
        self.measured.insert(shape, faster);
        Ok(())
    }
}
