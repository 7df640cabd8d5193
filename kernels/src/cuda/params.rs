//! What a parameter struct of a kernel must be, and what kernels must know of a device.

use std::str::FromStr;

/// What NVIDIA calls a device's compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// Generation: 8 is Ampere and Ada, 9 Hopper.
    pub major: i32,
    /// Within it.
    pub minor: i32,
}

impl Capability {
    /// Shared memory, in bytes, that a CTA of such a device may ask for (CUDA C++ Programming
    /// Guide, Technical Specifications per Compute Capability).
    pub(super) fn shared_bytes_max(self) -> usize {
        match (self.major, self.minor) {
            (8, 0 | 7) => 163 << 10,
            (8, _) | (12, _) => 99 << 10,
            _ => 227 << 10,
        }
    }
}

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.');
        let numbers = parts.map(|(major, minor)| (major.parse(), minor.parse()));
        match numbers {
            Some((Ok(major @ 8..), Ok(minor @ 0..))) => Ok(Self { major, minor }),
            _ => Err(format!(
                "{text:?} is no compute capability from 8.0 on, such as 8.6"
            )),
        }
    }
}

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

/// Shape of the products `c = scale · a · b`, or `add` more, of a batch of f32 matrices, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ProductShape {
    /// Rows of `a` and `c`.
    pub(super) rows: usize,
    /// Columns of `a`, rows of `b`.
    pub(super) inner: usize,
    /// Columns of `b` and `c`.
    pub(super) columns: usize,
    /// Products.
    pub(super) batch: usize,
    /// Where the values of `a` are.
    pub(super) a: MatrixLayout,
    /// Where the values of `b` are.
    pub(super) b: MatrixLayout,
    /// Where the values of `c` are, and those added to it; not transposed.
    pub(super) c: MatrixLayout,
}

/// Where the values of a batch of matrices are, counted in values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MatrixLayout {
    /// From a row to the next, as it lies in memory.
    pub(super) row: usize,
    /// From a matrix to the next.
    pub(super) matrix: usize,
    /// Rows in memory are columns of the matrix.
    pub(super) transposed: bool,
}

impl MatrixLayout {
    /// Rows `row` values apart, matrices `matrix`.
    pub(super) const fn new(row: usize, matrix: usize) -> Self {
        Self {
            row,
            matrix,
            transposed: false,
        }
    }

    /// The same memory read as the transpose.
    pub(super) const fn transposed(self) -> Self {
        Self {
            transposed: !self.transposed,
            ..self
        }
    }
}

/// A dimension of a bf16 tensor that the copy engine reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorDim {
    /// Elements.
    pub(super) len: u64,
    /// From one element to the next; a multiple of 16. Of the innermost dimension 2, and not looked
    /// at.
    pub(super) stride_bytes: u64,
    /// Elements that one copy brings.
    pub(super) tile: u32,
}
