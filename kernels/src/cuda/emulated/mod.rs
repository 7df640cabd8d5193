//! Stands in for `driver` with feature `cuda-emulator`: device memory is host memory, a launch runs
//! the kernel's CTAs one after the other in the emulator of `cuda/emulator`, a stream runs what it
//! is given at once, and a graph is a list of closures.

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
pub(super) use stream::Graph;
pub use stream::{Event, Stream};
pub(super) use tensor_map::TensorMap;
