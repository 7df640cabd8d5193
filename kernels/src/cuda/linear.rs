//! A linear layer on a GPU.

use half::bf16;

use super::driver::{DeviceBuffer, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, GemmShape};
use super::products::{Ends, Products};

/// `y = W x + b` with bf16 weights, `[out][in]`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: DeviceBuffer<bf16>,
    /// Of the outputs. Whoever finishes Q, K and V adds theirs; no other layer has one.
    bias: Option<DeviceBuffer<bf16>>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// Of loaded weights.
    pub(super) fn new(
        weight: DeviceBuffer<bf16>,
        bias: Option<DeviceBuffer<bf16>>,
        (inputs, outputs): (usize, usize),
    ) -> Self {
        assert_eq!(weight.len(), inputs * outputs);
        Self {
            weight,
            bias,
            inputs,
            outputs,
        }
    }

    /// `[out][in]`.
    pub(super) fn weight(&self) -> &DeviceBuffer<bf16> {
        &self.weight
    }

    /// `[out]`.
    pub(super) fn bias(&self) -> Option<&DeviceBuffer<bf16>> {
        self.bias.as_ref()
    }

    /// The product with `rows` rows, with outputs of 32 bit if `wide`.
    pub(super) fn shape(&self, rows: usize, wide: bool) -> GemmShape {
        GemmShape {
            rows,
            inputs: self.inputs,
            outputs: self.outputs,
            wide,
        }
    }

    /// Enqueues `y = W x`, and what `ends` says. Without a bias.
    ///
    /// # Safety
    /// As for [`Products::run`] and, where `ends` says anything, [`Products::run_to`].
    pub(super) unsafe fn multiply(
        &self,
        products: &mut Products,
        stream: &Stream,
        shape: GemmShape,
        [x, y]: [DevicePtr; 2],
        ends: Ends,
    ) -> Result<(), CudaError> {
        let w = self.weight.ptr();
        // SAFETY: the weights have the shape that `shape` took from them; the rest is the caller's.
        unsafe {
            if ends.is_none() {
                products.run(stream, shape, x, w, y)
            } else {
                products.run_to(ends, stream, shape, [x, w, y])
            }
        }
    }
}
