//! Matrix products by their definition.

use std::sync::Arc;

use half::bf16;

use super::device::Device;
use super::stream::Stream;
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, GemmShape};

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
}
