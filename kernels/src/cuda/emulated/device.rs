//! The emulated device and its kernels.

use std::ffi::{CString, c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::stream::Stream;
use crate::cuda::error::CudaError;
use crate::cuda::params::{Capability, KernelParams};

unsafe extern "C" {
    fn ebb_emulator_find(
        name: *const c_char,
        param_bytes: *mut usize,
        threads: *mut u32,
    ) -> *const c_void;
    fn ebb_emulator_launch(
        kernel: *const c_void,
        grid_x: u32,
        grid_y: u32,
        threads: u32,
        shared_bytes: u32,
        params: *const c_void,
    );
}

/// The emulator keeps one CTA's threads and shared memory.
static RUNNING: Mutex<()> = Mutex::new(());

/// Bytes of device memory: those of a small GPU.
const MEMORY_BYTES: usize = 4 << 30;

/// A device of three multiprocessors: few enough that persistent kernels have more work than CTAs.
#[derive(Debug)]
pub struct Device {
    /// Bytes of live buffers.
    allocated: AtomicUsize,
    capability: Capability,
}

/// That of the machine the kernels are tuned for.
const CAPABILITY: Capability = Capability { major: 9, minor: 0 };

impl Device {
    /// "Opens" the device; there is one.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        Self::open_as(ordinal, None)
    }

    /// The same, used as if it were of an older compute capability.
    pub fn open_as(ordinal: usize, older: Option<Capability>) -> Result<Arc<Self>, CudaError> {
        if ordinal > 0 {
            return Err(CudaError::NoDevice { ordinal, count: 1 });
        }
        Ok(Arc::new(Self {
            allocated: AtomicUsize::new(0),
            capability: older.map_or(CAPABILITY, |older| older.min(CAPABILITY)),
        }))
    }

    /// Nothing to do.
    pub fn bind(&self) -> Result<(), CudaError> {
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        "CUDA emulator"
    }

    /// What it can do.
    pub fn capability(&self) -> Capability {
        self.capability
    }

    /// Whether kernels may use the copy engine (copies of whole tensor boxes, and barriers on which
    /// they complete). The code that does is for compute capability 9.0 alone; newer devices run
    /// what is compiled for 8.9.
    pub fn has_copy_engine(&self) -> bool {
        self.capability.major == 9
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        3
    }

    /// Shared memory a CTA may ask for, in bytes.
    pub fn shared_bytes_max(&self) -> usize {
        self.capability.shared_bytes_max()
    }

    /// Bytes of device memory, (free, total).
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        let allocated = self.allocated.load(Ordering::Relaxed);
        Ok((MEMORY_BYTES - allocated, MEMORY_BYTES))
    }

    /// Accounts for a new buffer.
    pub(super) fn take(&self, bytes: usize, what: &'static str) -> Result<(), CudaError> {
        let taken =
            self.allocated
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |allocated| {
                    Some(allocated + bytes).filter(|sum| *sum <= MEMORY_BYTES)
                });
        taken
            .map(|_| ())
            .map_err(|allocated| CudaError::OutOfMemory {
                what,
                bytes,
                free: MEMORY_BYTES - allocated,
                total: MEMORY_BYTES,
            })
    }

    /// Accounts for a buffer that is gone.
    pub(super) fn give_back(&self, bytes: usize) {
        self.allocated.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Finds a kernel and checks that its parameters have the size of `P`.
    pub(in crate::cuda) fn kernel<P: KernelParams>(
        self: &Arc<Self>,
        name: &'static str,
        shared_bytes: usize,
    ) -> Result<Kernel<P>, CudaError> {
        let c_name = CString::new(name).map_err(|_| CudaError::NoKernel(name))?;
        let (mut device, mut threads, host) = (0, 0, size_of::<P>());
        // SAFETY: a C string and valid out-pointers.
        let function = unsafe { ebb_emulator_find(c_name.as_ptr(), &mut device, &mut threads) };
        if function.is_null() {
            return Err(CudaError::NoKernel(name));
        }
        if device != host {
            return Err(CudaError::ParamSize {
                kernel: name,
                device,
                host,
            });
        }
        Ok(Kernel {
            function: function as usize,
            shared_bytes: shared_bytes as u32,
            _params: PhantomData,
        })
    }
}

/// A kernel that takes one `P` by value.
#[derive(Debug)]
pub(in crate::cuda) struct Kernel<P> {
    function: usize,
    shared_bytes: u32,
    _params: PhantomData<P>,
}

// SAFETY: an address of static data.
unsafe impl<P> Send for Kernel<P> {}

impl<P: KernelParams + Send + 'static> Kernel<P> {
    /// CTAs that fit one multiprocessor, by shared memory alone.
    pub(in crate::cuda) fn ctas_per_multiprocessor(
        &self,
        _threads: u32,
    ) -> Result<usize, CudaError> {
        Ok((228 << 10) / (self.shared_bytes as usize + 1024))
    }

    /// Runs the kernel, or records it.
    ///
    /// # Safety
    /// Every address in `params` must be valid, for the extent the kernel reads and writes,
    /// whenever this runs.
    pub(in crate::cuda) unsafe fn launch(
        &self,
        stream: &Stream,
        grid: (u32, u32),
        threads: u32,
        params: &P,
    ) -> Result<(), CudaError> {
        let (function, shared_bytes, params) = (self.function, self.shared_bytes, *params);
        stream.submit(move || {
            let _guard = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: a kernel of this parameter type; one launch at a time; the addresses are the
            // caller's.
            unsafe {
                ebb_emulator_launch(
                    function as *const c_void,
                    grid.0,
                    grid.1,
                    threads,
                    shared_bytes,
                    std::ptr::from_ref(&params).cast(),
                );
            }
        });
        Ok(())
    }
}
