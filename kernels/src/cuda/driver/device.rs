//! One GPU: its primary context, its limits and the loaded kernels.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::check;
use super::stream::Stream;
use crate::cuda::error::CudaError;
use crate::cuda::params::{Capability, KernelParams};

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// A GPU with its context and kernels. Shared by everything allocated on it.
#[derive(Debug)]
pub struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    modules: Vec<sys::CUmodule>,
    kernels: HashMap<CString, sys::CUfunction>,
    name: String,
    capability: Capability,
    multiprocessors: usize,
    shared_bytes_max: usize,
}

// SAFETY: the handles are process-wide and the driver API is thread-safe; `bind` makes the context
// current per thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens device `ordinal` and loads the kernels. Errors say what is missing.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        Self::open_as(ordinal, None)
    }

    /// The same, used as if it were of an older compute capability: for checks of what older
    /// devices run. The kernels are those compiled for the device itself, or, where the program has
    /// none, for the older one.
    pub fn open_as(ordinal: usize, older: Option<Capability>) -> Result<Arc<Self>, CudaError> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        // SAFETY: the driver is present; out-pointers are valid for the calls.
        unsafe {
            check("cuInit", sys::cuInit(0))?;
            let mut count = 0;
            check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
            if ordinal >= count as usize {
                return Err(CudaError::NoDevice {
                    ordinal,
                    count: count as usize,
                });
            }
            let mut device = 0;
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32))?;
            let mut name = [0 as std::ffi::c_char; 256];
            check(
                "cuDeviceGetName",
                sys::cuDeviceGetName(name.as_mut_ptr(), 255, device),
            )?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let attribute = |a| {
                let mut value = 0;
                check(
                    "cuDeviceGetAttribute",
                    sys::cuDeviceGetAttribute(&mut value, a, device),
                )
                .map(|()| value)
            };
            let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            if major < 8 {
                return Err(CudaError::TooOld { name, major, minor });
            }
            let own = Capability { major, minor };
            let capability = older.map_or(own, |older| older.min(own));
            let multiprocessors =
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
            let shared =
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
                    as usize;
            let mut context = std::ptr::null_mut();
            check(
                "cuDevicePrimaryCtxRetain",
                sys::cuDevicePrimaryCtxRetain(&mut context, device),
            )?;
            let mut this = Self {
                device,
                context,
                modules: Vec::with_capacity(IMAGES.len()),
                kernels: HashMap::new(),
                name,
                capability,
                multiprocessors,
                shared_bytes_max: older.map_or(shared, |c| shared.min(c.shared_bytes_max())),
            };
            this.bind()?;
            for (_, image) in IMAGES {
                let mut module = std::ptr::null_mut();
                check(
                    "loading the kernels",
                    sys::cuModuleLoadData(&mut module, image.as_ptr().cast()),
                )?;
                this.modules.push(module);
                let mut count = 0;
                check(
                    "counting the kernels",
                    sys::cuModuleGetFunctionCount(&mut count, module),
                )?;
                let mut functions = vec![std::ptr::null_mut(); count as usize];
                check(
                    "listing the kernels",
                    sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module),
                )?;
                for function in functions {
                    let mut name = std::ptr::null();
                    check("naming a kernel", sys::cuFuncGetName(&mut name, function))?;
                    let name = CStr::from_ptr(name).to_owned();
                    this.kernels.insert(name, function);
                }
            }
            Ok(Arc::new(this))
        }
    }

    /// Makes this device current on the calling thread; needed once per thread that uses it.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained until `self` is dropped.
        check("cuCtxSetCurrent", unsafe {
            sys::cuCtxSetCurrent(self.context)
        })
    }

    /// Name the driver gives it.
    pub fn name(&self) -> &str {
        &self.name
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
        self.multiprocessors
    }

    /// Shared memory a CTA may ask for, in bytes.
    pub fn shared_bytes_max(&self) -> usize {
        self.shared_bytes_max
    }

    /// Bytes of device memory, (free, total).
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        // Asked by whoever wants to know, on any thread.
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid out-pointers.
        check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok((free, total))
    }

    /// Finds a kernel, checks that its parameters have the size of `P`, and allows it
    /// `shared_bytes` of dynamic shared memory.
    pub(in crate::cuda) fn kernel<P: KernelParams>(
        self: &Arc<Self>,
        name: &'static str,
        shared_bytes: usize,
    ) -> Result<Kernel<P>, CudaError> {
        let c_name = CString::new(name).map_err(|_| CudaError::NoKernel(name))?;
        let host = size_of::<P>();
        if let Some(&function) = self.kernels.get(&c_name) {
            let (mut offset, mut device) = (0, 0);
            // SAFETY: the function is valid; out-pointers are too.
            let code = unsafe { sys::cuFuncGetParamInfo(function, 0, &mut offset, &mut device) };
            check("cuFuncGetParamInfo", code)?;
            if device != host {
                return Err(CudaError::ParamSize {
                    kernel: name,
                    device,
                    host,
                });
            }
            if shared_bytes > 0 {
                let attribute =
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: as above.
                check("allowing a kernel its shared memory", unsafe {
                    sys::cuFuncSetAttribute(function, attribute, shared_bytes as i32)
                })?;
            }
            // One split of L1 and shared memory for all kernels: a change of it keeps a kernel from
            // starting while the one before it ends.
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: as above.
            check("choosing a kernel's share of shared memory", unsafe {
                sys::cuFuncSetAttribute(function, attribute, 100)
            })?;
            return Ok(Kernel {
                function,
                shared_bytes: shared_bytes as u32,
                device: self.clone(),
                _params: PhantomData,
            });
        }
        Err(CudaError::NoKernel(name))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything allocated on the device holds it by `Arc`, so nothing uses the modules
        // or the context any more. Errors are of no use here: after a sticky error every call
        // fails.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            for &module in &self.modules {
                let _ = sys::cuModuleUnload(module);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// A kernel that takes one `P` by value.
#[derive(Debug)]
pub(in crate::cuda) struct Kernel<P> {
    function: sys::CUfunction,
    shared_bytes: u32,
    device: Arc<Device>,
    _params: PhantomData<P>,
}

// SAFETY: a function handle may be used from any thread.
unsafe impl<P> Send for Kernel<P> {}

impl<P: KernelParams> Kernel<P> {
    /// CTAs of `threads` that fit one multiprocessor.
    pub(in crate::cuda) fn ctas_per_multiprocessor(
        &self,
        threads: u32,
    ) -> Result<usize, CudaError> {
        let mut ctas = 0;
        // SAFETY: the function is valid and so is the out-pointer.
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut ctas,
                self.function,
                threads as i32,
                self.shared_bytes as usize,
            )
        })?;
        Ok(ctas as usize)
    }

    /// Enqueues the kernel; nothing is launched for an empty grid.
    ///
    /// # Safety
    /// Every address in `params` must be valid, for the extent the kernel reads and writes, until
    /// the stream has run it, and nothing else may write what it reads, or touch what it writes,
    /// meanwhile.
    pub(in crate::cuda) unsafe fn launch(
        &self,
        stream: &Stream,
        grid: (u32, u32),
        threads: u32,
        params: &P,
    ) -> Result<(), CudaError> {
        if grid.0 == 0 || grid.1 == 0 {
            return Ok(());
        }
        let mut copy = *params;
        let mut arguments = [std::ptr::from_mut(&mut copy).cast::<c_void>()];
        // Every kernel waits for the previous one by itself (`ebb::wait_for_previous`), so it may
        // start before that one ends.
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream.raw(),
            attrs: &mut attribute,
            numAttrs: u32::from(self.device.has_copy_engine()),
        };
        // SAFETY: one parameter of the checked size; the driver copies it and the configuration
        // before it returns. The addresses are the caller's.
        check("launching a kernel", unsafe {
            sys::cuLaunchKernelEx(
                &config,
                self.function,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}
