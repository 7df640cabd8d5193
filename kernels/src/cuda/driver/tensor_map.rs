//! Tensors as the copy engine sees them (devices of compute capability 9.0 and later).

use cudarc::driver::sys;

use super::check;
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, TensorDim};

/// A bf16 tensor and the box that one copy of it brings to shared memory, swizzled by 128 bytes.
/// Part of a kernel's parameters.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct TensorMap([u64; 16]);

impl TensorMap {
    /// In the place of one that nobody copies by.
    pub(in crate::cuda) const NONE: Self = Self([0; 16]);

    /// Describes the tensor of `dims`, innermost first, at `address`. A row of the box must be 128
    /// bytes.
    pub(in crate::cuda) fn new(address: DevicePtr, dims: &[TensorDim]) -> Result<Self, CudaError> {
        let lens: Vec<u64> = dims.iter().map(|d| d.len).collect();
        let strides: Vec<u64> = dims.iter().skip(1).map(|d| d.stride_bytes).collect();
        let tile: Vec<u32> = dims.iter().map(|d| d.tile).collect();
        let steps = vec![1; dims.len()];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: every array has one entry per dimension (strides one less), and the call reads
        // nothing at `address`.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                dims.len() as u32,
                address as *mut _,
                lens.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                // Wider promotion costs 4 % of the read bandwidth.
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check("describing a tensor to the copy engine", code)?;
        Ok(Self(map.opaque))
    }
}
