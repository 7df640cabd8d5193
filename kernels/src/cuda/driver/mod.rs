//! The NVIDIA driver and cuBLASLt: owners of their objects, and what a launch needs.

mod device;
mod gemm;
mod gemm_f32;
mod memory;
mod stream;
mod tensor_map;

pub use device::Device;
pub(super) use device::Kernel;
pub(super) use gemm::Gemm;
pub(super) use gemm_f32::GemmF32;
pub use memory::{DeviceBuffer, Pinned};
pub use stream::Event;
pub(super) use stream::Graph;
pub use stream::Stream;
pub(super) use tensor_map::TensorMap;

use cudarc::driver::sys::CUresult;

use super::error::CudaError;

/// Turns a driver status into a result that names the operation.
fn check(operation: &'static str, code: CUresult) -> Result<(), CudaError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(CudaError::Driver {
            operation,
            code: format!("{code:?}"),
        }),
    }
}
