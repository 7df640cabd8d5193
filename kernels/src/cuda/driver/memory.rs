//! Device memory and pinned host memory, freed when dropped.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys;

use super::check;
use super::device::Device;
use super::stream::Stream;
use crate::cuda::error::CudaError;
use crate::cuda::params::DevicePtr;

/// `len` values of `T` in device memory.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    address: DevicePtr,
    len: usize,
    device: Arc<Device>,
    _values: PhantomData<T>,
}

// SAFETY: owns its memory; the driver frees from any thread.
unsafe impl<T: Send> Send for DeviceBuffer<T> {}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates uninitialised memory; `what` names it if there is no room.
    pub fn new(device: &Arc<Device>, len: usize, what: &'static str) -> Result<Self, CudaError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(CudaError::OutOfMemory {
                what,
                bytes: usize::MAX,
                free: 0,
                total: 0,
            })?;
        let mut address = 0;
        // SAFETY: valid out-pointer. An empty buffer still gets an address of its own.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(16)) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = device.memory()?;
                Err(CudaError::OutOfMemory {
                    what,
                    bytes,
                    free,
                    total,
                })
            }
            code => check("cuMemAlloc", code).map(|()| Self {
                address,
                len,
                device: device.clone(),
                _values: PhantomData,
            }),
        }
    }

    /// Allocates memory whose bytes are all `byte`.
    pub fn filled(
        device: &Arc<Device>,
        len: usize,
        byte: u8,
        what: &'static str,
    ) -> Result<Self, CudaError> {
        let this = Self::new(device, len, what)?;
        // SAFETY: the range is this allocation.
        check("cuMemsetD8", unsafe {
            sys::cuMemsetD8_v2(this.address, byte, this.bytes())
        })?;
        // Fills run on the default stream, which the others here do not wait for.
        // SAFETY: null names the default stream.
        check("waiting for the device", unsafe {
            sys::cuStreamSynchronize(std::ptr::null_mut())
        })?;
        Ok(this)
    }

    /// Allocates a copy of `values`.
    pub fn from_slice(
        device: &Arc<Device>,
        values: &[T],
        what: &'static str,
    ) -> Result<Self, CudaError> {
        let mut this = Self::new(device, values.len(), what)?;
        this.write(0, values)?;
        Ok(this)
    }

    /// Values it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Its address.
    pub(in crate::cuda) fn ptr(&self) -> DevicePtr {
        self.address
    }

    /// The address of value `index`. Panics beyond the end.
    pub(in crate::cuda) fn at(&self, index: usize) -> DevicePtr {
        assert!(index <= self.len, "value {index} of {}", self.len);
        self.address + (index * size_of::<T>()) as u64
    }

    /// Copies `values` to `offset`, and waits. Panics if they do not fit.
    pub fn write(&mut self, offset: usize, values: &[T]) -> Result<(), CudaError> {
        assert!(
            offset + values.len() <= self.len,
            "{offset} + {} of {}",
            values.len(),
            self.len
        );
        // SAFETY: both ranges are in bounds.
        check("copying to the device", unsafe {
            sys::cuMemcpyHtoD_v2(self.at(offset), values.as_ptr().cast(), size_of_val(values))
        })?;
        // The call may return when the values are staged; streams of ours do not wait for the
        // default one. SAFETY: the default stream always exists.
        check("waiting for a copy to the device", unsafe {
            sys::cuStreamSynchronize(std::ptr::null_mut())
        })
    }

    /// Copies `out.len()` values from `offset` on, and waits for that copy (not for any stream).
    /// Panics beyond the end.
    pub fn read(&self, offset: usize, out: &mut [T]) -> Result<(), CudaError> {
        assert!(
            offset + out.len() <= self.len,
            "{offset} + {} of {}",
            out.len(),
            self.len
        );
        // SAFETY: both ranges are in bounds, and any bytes are a `T`.
        check("copying from the device", unsafe {
            sys::cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), self.at(offset), size_of_val(out))
        })
    }

    /// The device it lies on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` and freed once. cuMemFree waits for the work that may still
        // use it.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// `len` values of `T` in page-locked host memory, which the device copies from and to without
/// staging.
#[derive(Debug)]
pub struct Pinned<T> {
    address: *mut T,
    len: usize,
    _device: Arc<Device>,
}

// SAFETY: owns its memory.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// Allocates zeroed pinned memory.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Self, CudaError> {
        let bytes = (len * size_of::<T>()).max(16);
        let mut address = std::ptr::null_mut();
        // SAFETY: valid out-pointer; the memory is zeroed before it is read.
        unsafe {
            check(
                "allocating pinned memory",
                sys::cuMemHostAlloc(&mut address, bytes, 0),
            )?;
            std::ptr::write_bytes(address.cast::<u8>(), 0, bytes);
        }
        Ok(Self {
            address: address.cast(),
            len,
            _device: device.clone(),
        })
    }
}

impl<T> Deref for Pinned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the allocation holds `len` initialised values.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}

impl<T> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` is exclusive on the host.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` and freed once.
        let _ = unsafe { sys::cuMemFreeHost(self.address.cast()) };
    }
}

impl Stream {
    /// Enqueues a copy of the first `len` values of `src` to `offset` of `dst`. Panics if they do
    /// not fit.
    ///
    /// # Safety
    /// `src` must not be written or dropped before the stream has run the copy.
    pub(in crate::cuda) unsafe fn upload<T: Pod>(
        &self,
        dst: &mut DeviceBuffer<T>,
        offset: usize,
        src: &Pinned<T>,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(
            len <= src.len() && offset + len <= dst.len(),
            "{offset} + {len}"
        );
        if len == 0 {
            return Ok(());
        }
        // SAFETY: in bounds; the lifetimes are the caller's.
        check("enqueueing a copy to the device", unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                dst.at(offset),
                src.as_ptr().cast(),
                len * size_of::<T>(),
                self.raw(),
            )
        })
    }

    /// Enqueues a copy of the first `len` values of `src` to `address`. Panics if there are fewer.
    ///
    /// # Safety
    /// `address` must be that of `len` values, which nothing else uses, and `src` must not be
    /// written or dropped, before the stream has run the copy.
    pub(in crate::cuda) unsafe fn upload_to<T: Pod>(
        &self,
        address: DevicePtr,
        src: &Pinned<T>,
        len: usize,
    ) -> Result<(), CudaError> {
        let values = &src[..len];
        // SAFETY: the source is in bounds; the rest is the caller's.
        check("enqueueing a copy to the device", unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                address,
                values.as_ptr().cast(),
                size_of_val(values),
                self.raw(),
            )
        })
    }

    /// Enqueues a copy of the first `len` values of `src` to `offset` of `dst`. Panics if they do
    /// not fit.
    ///
    /// # Safety
    /// Neither may be dropped, nor `dst` read or written, before the stream has run the copy.
    pub(in crate::cuda) unsafe fn download<T: Pod>(
        &self,
        dst: &mut Pinned<T>,
        offset: usize,
        src: &DeviceBuffer<T>,
        len: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.download_from(dst, offset, src, 0, len) }
    }

    /// The same from value `from` of `src` on.
    ///
    /// # Safety
    /// As of `download`.
    pub(in crate::cuda) unsafe fn download_from<T: Pod>(
        &self,
        dst: &mut Pinned<T>,
        offset: usize,
        src: &DeviceBuffer<T>,
        from: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(from + len <= src.len(), "{from} + {len} of {}", src.len());
        let to = &mut dst[offset..offset + len];
        if len == 0 {
            return Ok(());
        }
        // SAFETY: in bounds; the lifetimes are the caller's.
        check("enqueueing a copy from the device", unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                to.as_mut_ptr().cast(),
                src.at(from),
                len * size_of::<T>(),
                self.raw(),
            )
        })
    }

    /// Enqueues a copy of `len` values inside one buffer. Panics out of bounds or if the ranges
    /// overlap.
    pub(in crate::cuda) fn copy_within<T: Pod>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        src: usize,
        dst: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(src + len <= buffer.len() && dst + len <= buffer.len() && src.abs_diff(dst) >= len);
        // SAFETY: in bounds and disjoint.
        check("enqueueing a copy on the device", unsafe {
            sys::cuMemcpyDtoDAsync_v2(
                buffer.at(dst),
                buffer.at(src),
                len * size_of::<T>(),
                self.raw(),
            )
        })
    }

    /// Enqueues filling a buffer with one byte.
    pub(in crate::cuda) fn fill<T: Pod>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        byte: u8,
    ) -> Result<(), CudaError> {
        // SAFETY: the range is the whole buffer.
        check("enqueueing a fill", unsafe {
            sys::cuMemsetD8Async(buffer.ptr(), byte, buffer.bytes(), self.raw())
        })
    }
}
