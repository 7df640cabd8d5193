//! Device memory that is host memory. What is not initialised holds NaN.

use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytemuck::Pod;

use super::device::Device;
use super::stream::Stream;
use crate::cuda::error::CudaError;
use crate::cuda::params::DevicePtr;

/// What the driver's allocator aligns to.
const ALIGN: usize = 256;

/// `len` values of `T` in device memory.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    address: DevicePtr,
    len: usize,
    device: Arc<Device>,
    _values: PhantomData<T>,
}

impl<T> DeviceBuffer<T> {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align((len * size_of::<T>()).max(16), ALIGN)
            .expect("the size of a buffer fits the address space")
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates memory whose bytes are all `0xff`.
    pub fn new(device: &Arc<Device>, len: usize, what: &'static str) -> Result<Self, CudaError> {
        Self::filled(device, len, 0xff, what)
    }

    /// Allocates memory whose bytes are all `byte`.
    pub fn filled(
        device: &Arc<Device>,
        len: usize,
        byte: u8,
        what: &'static str,
    ) -> Result<Self, CudaError> {
        let layout = Self::layout(len);
        device.take(layout.size(), what)?;
        // SAFETY: the layout is not empty; the whole allocation is initialised.
        let address = unsafe {
            let address = alloc(layout);
            assert!(!address.is_null(), "out of memory");
            address.write_bytes(byte, layout.size());
            address as DevicePtr
        };
        Ok(Self {
            address,
            len,
            device: device.clone(),
            _values: PhantomData,
        })
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

    /// Copies `values` to `offset`. Panics if they do not fit.
    pub fn write(&mut self, offset: usize, values: &[T]) -> Result<(), CudaError> {
        assert!(
            offset + values.len() <= self.len,
            "{offset} + {} of {}",
            values.len(),
            self.len
        );
        // SAFETY: in bounds, and the ranges are distinct allocations.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), self.at(offset) as *mut T, values.len())
        };
        Ok(())
    }

    /// Copies `out.len()` values from `offset` on. Panics beyond the end.
    pub fn read(&self, offset: usize, out: &mut [T]) -> Result<(), CudaError> {
        assert!(
            offset + out.len() <= self.len,
            "{offset} + {} of {}",
            out.len(),
            self.len
        );
        // SAFETY: in bounds, and the ranges are distinct allocations.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(offset) as *const T, out.as_mut_ptr(), out.len())
        };
        Ok(())
    }

    /// The device it lies on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout, freed once.
        unsafe { dealloc(self.address as *mut u8, Self::layout(self.len)) }
        self.device.give_back(Self::layout(self.len).size());
    }
}

/// `len` values of `T` in host memory.
#[derive(Debug)]
pub struct Pinned<T>(Vec<T>);

impl<T: Pod> Pinned<T> {
    /// Allocates zeroed memory.
    pub fn new(_device: &Arc<Device>, len: usize) -> Result<Self, CudaError> {
        Ok(Self(vec![T::zeroed(); len]))
    }
}

impl<T> Deref for Pinned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl Stream {
    /// Copies the first `len` values of `src` to `offset` of `dst`. Panics if they do not fit.
    ///
    /// # Safety
    /// None is needed here; the driver's own needs `src` to stay as it is until the stream has run
    /// the copy.
    pub(in crate::cuda) unsafe fn upload<T: Pod>(
        &self,
        dst: &mut DeviceBuffer<T>,
        offset: usize,
        src: &Pinned<T>,
        len: usize,
    ) -> Result<(), CudaError> {
        dst.write(offset, &src[..len])
    }

    /// Copies the first `len` values of `src` to `address`. Panics if there are fewer.
    ///
    /// # Safety
    /// `address` must be that of `len` values, which nothing else uses meanwhile.
    pub(in crate::cuda) unsafe fn upload_to<T: Pod>(
        &self,
        address: DevicePtr,
        src: &Pinned<T>,
        len: usize,
    ) -> Result<(), CudaError> {
        let values = &src[..len];
        // SAFETY: the source is in bounds; the rest is the caller's.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), address as *mut T, len) };
        Ok(())
    }

    /// Copies the first `len` values of `src` to `offset` of `dst`. Panics if they do not fit.
    ///
    /// # Safety
    /// None is needed here; the driver's own needs both to stay until the stream has run the copy.
    pub(in crate::cuda) unsafe fn download<T: Pod>(
        &self,
        dst: &mut Pinned<T>,
        offset: usize,
        src: &DeviceBuffer<T>,
        len: usize,
    ) -> Result<(), CudaError> {
        src.read(0, &mut dst[offset..offset + len])
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
        src.read(from, &mut dst[offset..offset + len])
    }

    /// Copies `len` values inside one buffer. Panics out of bounds or if the ranges overlap.
    pub(in crate::cuda) fn copy_within<T: Pod>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        src: usize,
        dst: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(src + len <= buffer.len() && dst + len <= buffer.len() && src.abs_diff(dst) >= len);
        // SAFETY: in bounds and disjoint.
        unsafe {
            std::ptr::copy_nonoverlapping(
                buffer.at(src) as *const u8,
                buffer.at(dst) as *mut u8,
                len * size_of::<T>(),
            )
        };
        Ok(())
    }

    /// Fills a buffer with one byte.
    pub(in crate::cuda) fn fill<T: Pod>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        byte: u8,
    ) -> Result<(), CudaError> {
        // SAFETY: the range is the whole buffer.
        unsafe { (buffer.ptr() as *mut u8).write_bytes(byte, buffer.bytes()) };
        Ok(())
    }
}
