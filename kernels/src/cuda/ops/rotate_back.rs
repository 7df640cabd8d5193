//! Attention's output where values were rotated as they were appended: launches of
//! `cuda/ops/rotate_back.cu`.

use std::sync::Arc;

use half::bf16;

use super::super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::super::error::CudaError;
use super::super::params::{DevicePtr, KernelParams};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RotateBackParams {
    attended: DevicePtr,
    heads: u32,
    head_dim: u32,
}
// SAFETY: field for field `ebb::RotateBackParams` of ops/rotate_back.cu.
unsafe impl KernelParams for RotateBackParams {}

/// Heads that a CTA rotates, a warp each.
const CTA_HEADS: usize = 8;

/// Multiplies heads by the normalised Walsh-Hadamard matrix of their size, which is its own
/// inverse.
#[derive(Debug)]
pub(in crate::cuda) struct RotateBack {
    kernel: Kernel<RotateBackParams>,
    head_dim: usize,
}

impl RotateBack {
    /// For heads of `head_dim` channels: only those of a power of two can be rotated.
    pub(in crate::cuda) fn new(device: &Arc<Device>, head_dim: usize) -> Result<Self, CudaError> {
        let kernel = match head_dim {
            64 => "rotate_back_d64",
            128 => "rotate_back_d128",
            _ => "rotate_back_any",
        };
        Ok(Self {
            kernel: device.kernel(kernel, 0)?,
            head_dim,
        })
    }

    /// The first `channels` channels, whole heads, in place.
    pub(in crate::cuda) fn run(
        &self,
        stream: &Stream,
        channels: usize,
        attended: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let heads = channels / self.head_dim;
        assert!(self.head_dim.is_power_of_two() && channels <= attended.len());
        let params = RotateBackParams {
            attended: attended.ptr(),
            heads: heads as u32,
            head_dim: self.head_dim as u32,
        };
        let grid = (heads.div_ceil(CTA_HEADS) as u32, 1);
        // SAFETY: the buffer is the backend's and holds those heads; work of one stream runs in
        // order.
        unsafe {
            self.kernel
                .launch(stream, grid, CTA_HEADS as u32 * 32, &params)
        }
    }
}
