//! Products of f32 matrices by their definition.

use std::sync::Arc;

use super::device::Device;
use super::stream::Stream;
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, MatrixLayout, ProductShape};

/// Stands in for the library.
#[derive(Debug)]
pub(in crate::cuda) struct GemmF32;

impl GemmF32 {
    pub(in crate::cuda) fn new(_device: &Arc<Device>) -> Result<Self, CudaError> {
        Ok(Self)
    }

    /// `c = scale · a · b`, plus what is at `add` if given, which may be `c`.
    ///
    /// # Safety
    /// The addresses must hold such matrices whenever this runs, and `c` must overlap neither `a`
    /// nor `b`.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::cuda) unsafe fn run(
        &mut self,
        stream: &Stream,
        shape: ProductShape,
        scale: f32,
        a: DevicePtr,
        b: DevicePtr,
        add: Option<DevicePtr>,
        c: DevicePtr,
    ) -> Result<(), CudaError> {
        stream.submit(move || {
            for matrix in 0..shape.batch {
                let at = |address: DevicePtr, lay: MatrixLayout, row: usize, column: usize| {
                    let (row, column) = if lay.transposed {
                        (column, row)
                    } else {
                        (row, column)
                    };
                    (address as *mut f32).wrapping_add(matrix * lay.matrix + row * lay.row + column)
                };
                for row in 0..shape.rows {
                    for column in 0..shape.columns {
                        let terms = (0..shape.inner).map(|i| {
                            // SAFETY: the caller's.
                            unsafe { *at(a, shape.a, row, i) * *at(b, shape.b, i, column) }
                        });
                        let product = scale * terms.sum::<f32>();
                        // SAFETY: the caller's.
                        unsafe {
                            let add = add.map_or(0.0, |add| *at(add, shape.c, row, column));
                            *at(c, shape.c, row, column) = add + product;
                        }
                    }
                }
            }
        });
        Ok(())
    }
}
