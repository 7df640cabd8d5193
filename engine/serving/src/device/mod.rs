//! The device that computes: which one, what it can do, how much memory it has, and the backend on
//! it.

mod backend;
mod budget;
mod choice;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
mod cuda;
#[cfg(not(any(feature = "cuda", feature = "cuda-emulator")))]
#[path = "no_cuda.rs"]
mod cuda;
mod error;
mod held_weights;

use std::time::Duration;

use ebb_kernels::formats::FormatId;
use ebb_kernels::kv::{KvGeometry, KvLayout};

use crate::kv_pages::PageFormats;

pub use backend::{BackendOptions, StepSizes};
pub use budget::Budget;
pub(crate) use budget::gib;
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

    /// Bytes of a GPU's memory that are in use, by all its users together.
    pub fn in_use(&self) -> Option<u64> {
        match self {
            Self::Cpu => None,
            Self::Cuda(device) => device.in_use(),
        }
    }

    /// Tokens computed in one step, unless told otherwise: enough to keep the device busy, few
    /// enough that running sequences do not wait long for a prompt.
    pub fn step_tokens_default(&self) -> usize {
        match self {
            Self::Cpu => 512,
            Self::Cuda(_) => 8192,
        }
    }

    /// Without a step for so long, while requests wait, the engine counts as hung, unless told
    /// otherwise: far longer than the longest step. On a CPU a step of a large model's prompt can
    /// take a minute.
    pub fn hang_timeout_default(&self) -> Duration {
        match self {
            Self::Cpu => Duration::from_secs(300),
            Self::Cuda(_) => Duration::from_secs(30),
        }
    }

    /// Bytes of blocks that one step may rewrite to shrink them, unless told otherwise: what a step
    /// of prompts needs when memory is full, in little of its time.
    pub fn shrink_bytes_default(&self) -> u64 {
        match self {
            Self::Cpu => 32 << 20,
            Self::Cuda(_) => 1 << 30,
        }
    }

    /// Whether its backend can run pages of this layout.
    ///
    /// # Errors
    /// [`DeviceError::Pages`], which says what to choose instead.
    pub fn check_pages(&self, layout: &KvLayout) -> Result<(), DeviceError> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda(device) => device.check_pages(layout),
        }
    }

    /// Whether its backend can run pages of each of these formats.
    ///
    /// # Errors
    /// [`DeviceError::Formats`], which names those that it cannot.
    pub fn check_formats(
        &self,
        geometry: KvGeometry,
        formats: &PageFormats,
    ) -> Result<(), DeviceError> {
        let Self::Cuda(device) = self else {
            return Ok(());
        };
        let mut wrong: Vec<&str> = Vec::new();
        let of_sink = &formats.guards.sink_formats;
        for pages in [&formats.sealed, &formats.protected]
            .into_iter()
            .chain(of_sink)
        {
            for (page, format) in pages.iter().enumerate() {
                // One page of it at a time, so that what is refused can be named.
                let mut alone = vec![FormatId::F16; pages.len()];
                alone[page] = *format;
                let layout = KvLayout::new(geometry, geometry.frame_layout(), &[alone]);
                // Pages that no device can have are for others to refuse.
                let runs = layout.map_or(true, |layout| device.check_pages(&layout).is_ok());
                if *format != FormatId::F16 && !runs && !wrong.contains(&format.name()) {
                    wrong.push(format.name());
                }
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(DeviceError::Formats {
            device: device.name(),
            formats: wrong.join(" and "),
            head_dim: geometry.head_dim,
        })
    }
}
