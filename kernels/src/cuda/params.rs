//! What a parameter struct of a kernel must be.

/// An address in device memory, as kernels see it.
pub(super) type DevicePtr = u64;

/// The parameter struct of a kernel.
///
/// # Safety
/// `#[repr(C)]`, and field for field the struct the CUDA source declares.
pub(in crate::cuda) unsafe trait KernelParams: Copy {}

/// Shape of a matrix product `y = x · wᵀ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct GemmShape {
    /// Rows of `x` and `y`.
    pub(super) rows: usize,
    /// Columns of `x` and `w`.
    pub(super) inputs: usize,
    /// Rows of `w`, columns of `y`.
    pub(super) outputs: usize,
    /// `y` is f32 instead of bf16.
    pub(super) wide: bool,
}

/// A dimension of a bf16 tensor that the copy engine reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorDim {
    /// Elements.
    pub(super) len: u64,
    /// From one element to the next; a multiple of 16. Of the innermost dimension 2, and not looked at.
    pub(super) stride_bytes: u64,
    /// Elements that one copy brings.
    pub(super) tile: u32,
}
