//! What can go wrong on the device, with the operation that failed.

/// A CUDA operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No driver library on this machine.
    #[error(
        "no CUDA driver on this machine (libcuda.so.1 was not found); install the NVIDIA driver \
         or run on the CPU"
    )]
    NoDriver,
    /// The driver sees too few devices.
    #[error("there is no CUDA device {ordinal}: the driver sees {count}")]
    NoDevice {
        /// Device asked for.
        ordinal: usize,
        /// Devices there are.
        count: usize,
    },
    /// The device cannot run the kernels.
    #[error("{name} has compute capability {major}.{minor}; 8.0 or newer is needed")]
    TooOld {
        /// Name of the device.
        name: String,
        /// Compute capability.
        major: i32,
        /// Compute capability.
        minor: i32,
    },
    /// A library is missing.
    #[error(
        "{library} was not found; add the folder that holds it to LD_LIBRARY_PATH (with pip's \
         packages: nvidia/cu13/lib)"
    )]
    NoLibrary {
        /// Its name.
        library: &'static str,
    },
    /// Device memory ran out.
    #[error(
        "the device has no room for {what}: {bytes} bytes asked for, {free} of {total} bytes free"
    )]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes free on the device.
        free: usize,
        /// Bytes on the device.
        total: usize,
    },
    /// A driver call failed.
    #[error("{operation} failed: {code}")]
    Driver {
        /// What was tried.
        operation: &'static str,
        /// The driver's answer, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
        code: String,
    },
    /// A cuBLASLt call failed.
    #[error("{operation} failed: {status}")]
    Blas {
        /// What was tried.
        operation: String,
        /// The library's answer.
        status: String,
    },
    /// A kernel is not in the embedded images; a bug in this crate.
    #[error("kernel {0} is not in this binary")]
    NoKernel(&'static str),
    /// Rust and CUDA disagree about a kernel's parameters; a bug in this crate.
    #[error("kernel {kernel} takes {device} bytes of parameters, the host passes {host}")]
    ParamSize {
        /// Name of the kernel.
        kernel: &'static str,
        /// Bytes the kernel expects.
        device: usize,
        /// Bytes the host passes.
        host: usize,
    },
    /// A model or pool that this backend cannot run.
    #[error("{0}")]
    Unsupported(String),
}

/// Answers after which the context is lost.
const STICKY: [&str; 11] = [
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_UNKNOWN",
];

impl CudaError {
    /// Whether the device's context is lost: every later call fails too, and only a new process
    /// recovers.
    pub fn is_sticky(&self) -> bool {
        matches!(self, Self::Driver { code, .. } if STICKY.contains(&code.as_str()))
    }
}
