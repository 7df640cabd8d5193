//! Matrix products by their definition.

use std::sync::Arc;

use half::bf16;

use super::device::Device;
use super::stream::Stream;
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, GemmShape};
use crate::weight_formats::E4M3;

/// Stands in for the library.
#[derive(Debug)]
pub(in crate::cuda) struct Gemm;

impl Gemm {
    /// None is needed here.
    pub(in crate::cuda) const WORKSPACE_BYTES: usize = 0;

    pub(in crate::cuda) fn new(_device: &Arc<Device>, _invariant: bool) -> Result<Self, CudaError> {
        Ok(Self)
    }

    /// Nothing to prepare.
    pub(in crate::cuda) fn prepare(&mut self, _shape: GemmShape) -> Result<(), CudaError> {
        Ok(())
    }

    /// Nothing to tune.
    ///
    /// # Safety
    /// None is needed here.
    pub(in crate::cuda) unsafe fn tune(
        &mut self,
        _: &Stream,
        _: GemmShape,
        _: DevicePtr,
        _: &[DevicePtr],
        _: DevicePtr,
    ) -> Result<(), CudaError> {
        Ok(())
    }

    /// `y = x · wᵀ`: `x` `[rows][inputs]` and `w` `[outputs][inputs]` bf16, `y` `[rows][outputs]`
    /// bf16 or f32.
    ///
    /// # Safety
    /// The addresses must hold matrices of that shape whenever this runs, and `y` must overlap
    /// neither input.
    pub(in crate::cuda) unsafe fn run(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        w: DevicePtr,
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        stream.submit(move || {
            let GemmShape {
                rows,
                inputs,
                outputs,
                wide,
            } = shape;
            // SAFETY: the caller's.
            let (x, w) = unsafe {
                (
                    std::slice::from_raw_parts(x as *const bf16, rows * inputs),
                    std::slice::from_raw_parts(w as *const bf16, outputs * inputs),
                )
            };
            let w: Vec<f32> = w.iter().map(|v| v.to_f32()).collect();
            for row in 0..rows {
                let x: Vec<f32> = x[row * inputs..][..inputs]
                    .iter()
                    .map(|v| v.to_f32())
                    .collect();
                for (column, w) in w.chunks_exact(inputs).enumerate() {
                    let sum: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                    let at = row * outputs + column;
                    // SAFETY: the caller's.
                    unsafe {
                        if wide {
                            *(y as *mut f32).add(at) = sum;
                        } else {
                            *(y as *mut bf16).add(at) = bf16::from_f32(sum);
                        }
                    }
                }
            }
        });
        Ok(())
    }

    /// `y = x · wᵀ` of E4M3 with a scale for each row of `x` and of `w`; outputs are bf16.
    ///
    /// # Safety
    /// As for [`Gemm::run`]; the scales are `[rows]` and `[outputs]` f32.
    pub(in crate::cuda) unsafe fn run_fp8(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        [x, x_scales]: [DevicePtr; 2],
        [w, w_scales]: [DevicePtr; 2],
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        stream.submit(move || {
            let GemmShape {
                rows,
                inputs,
                outputs,
                ..
            } = shape;
            // SAFETY: the caller's.
            let (x, w, x_scales, w_scales) = unsafe {
                (
                    std::slice::from_raw_parts(x as *const u8, rows * inputs),
                    std::slice::from_raw_parts(w as *const u8, outputs * inputs),
                    std::slice::from_raw_parts(x_scales as *const f32, rows),
                    std::slice::from_raw_parts(w_scales as *const f32, outputs),
                )
            };
            for row in 0..rows {
                let x = &x[row * inputs..][..inputs];
                for (column, w) in w.chunks_exact(inputs).enumerate() {
                    let terms = x.iter().zip(w);
                    let terms = terms.map(|(x, w)| E4M3[usize::from(*x)] * E4M3[usize::from(*w)]);
                    let sum = terms.sum::<f32>() * x_scales[row] * w_scales[column];
                    // SAFETY: the caller's.
                    unsafe { *(y as *mut bf16).add(row * outputs + column) = bf16::from_f32(sum) };
                }
            }
        });
        Ok(())
    }
}
