//! The device that computes: which one, what it can do, how much memory it has, and the backend on it.

mod backend;
mod budget;
mod choice;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
mod cuda;
#[cfg(not(any(feature = "cuda", feature = "cuda-emulator")))]
#[path = "no_cuda.rs"]
mod cuda;
mod error;

use ebb_kernels::kv::KvLayout;

pub use backend::{BackendOptions, StepSizes};
pub use budget::Budget;
pub use choice::DeviceChoice;
pub use cuda::CudaDevice;
pub use error::DeviceError;

/// A device that is open. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Device {
    /// The cores of this machine.
    Cpu,
    /// A GPU.
    Cuda(CudaDevice),
}

impl Device {
    /// Opens the device that `choice` means; tells the log when `auto` finds none but the CPU.
    ///
    /// # Errors
    /// When the device asked for cannot be used.
    pub fn open(choice: DeviceChoice) -> Result<Self, DeviceError> {
        match choice {
            DeviceChoice::Cpu => Ok(Self::Cpu),
            DeviceChoice::Cuda(ordinal) => CudaDevice::open(ordinal).map(Self::Cuda),
            DeviceChoice::Auto => match CudaDevice::open(0) {
                Ok(device) => Ok(Self::Cuda(device)),
                Err(DeviceError::NotBuilt | DeviceError::NoDriver { .. }) => Ok(Self::Cpu),
                Err(error) => {
                    tracing::warn!("computing on the CPU, because the GPU cannot be used: {error}");
                    Ok(Self::Cpu)
                }
            },
        }
    }

    /// For people: a GPU's name and memory, or the cores' instruction set.
    pub fn description(&self) -> String {
        match self {
            Self::Cpu => format!("CPU ({})", ebb_kernels::cpu::simd::Isa::detect().name()),
            Self::Cuda(device) => device.description(),
        }
    }

    /// Tokens computed in one step, unless told otherwise: enough to keep the device busy, few enough that running
    /// sequences do not wait long for a prompt.
    pub fn step_tokens_default(&self) -> usize {
        match self {
            Self::Cpu => 512,
            Self::Cuda(_) => 8192,
        }
    }

    /// Whether its backend can run pages of this layout, with V rotated or not.
    ///
    /// # Errors
    /// [`DeviceError::Pages`], which says what to choose instead.
    pub fn check_pages(&self, layout: &KvLayout, rotate_v: bool) -> Result<(), DeviceError> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda(device) => device.check_pages(layout, rotate_v),
        }
    }
}
