//! A linear layer on a GPU.

use half::bf16;

use super::driver::{DeviceBuffer, Stream};
use super::error::CudaError;
use super::packed::PackedPart;
use super::params::{DevicePtr, GemmShape};
use super::products::{Ends, Products};

/// `y = W x + b`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Weight,
    /// Of the outputs. Whoever reads them adds it: products do not.
    bias: Option<DeviceBuffer<bf16>>,
    inputs: usize,
    outputs: usize,
}

/// The weights of a linear layer.
#[derive(Debug)]
pub(super) enum Weight {
    /// `[out][in]`.
    Plain(DeviceBuffer<bf16>),
    /// Parts of the outputs, beside each other.
    Packed(Vec<PackedPart>),
}

impl Weight {
    /// The parts of packed weights; none of plain ones.
    pub(super) fn parts(&self) -> &[PackedPart] {
        match self {
            Self::Plain(_) => &[],
            Self::Packed(parts) => parts,
        }
    }

    /// Those of packed weights, to be filled.
    pub(super) fn parts_mut(&mut self) -> &mut [PackedPart] {
        match self {
            Self::Plain(_) => &mut [],
            Self::Packed(parts) => parts,
        }
    }
}

impl Linear {
    /// Of loaded weights.
    pub(super) fn new(
        weight: Weight,
        bias: Option<DeviceBuffer<bf16>>,
        (inputs, outputs): (usize, usize),
    ) -> Self {
        match &weight {
            Weight::Plain(weight) => assert_eq!(weight.len(), inputs * outputs),
            Weight::Packed(parts) => {
                assert!(parts.iter().all(|part| part.inputs == inputs));
                assert_eq!(
                    parts.iter().map(|part| part.outputs).sum::<usize>(),
                    outputs
                );
            }
        }
        Self {
            weight,
            bias,
            inputs,
            outputs,
        }
    }

    /// `[out][in]`, if they are not packed.
    pub(super) fn plain(&self) -> Option<&DeviceBuffer<bf16>> {
        match &self.weight {
            Weight::Plain(weight) => Some(weight),
            Weight::Packed(_) => None,
        }
    }

    /// The parts of packed weights; none of plain ones.
    pub(super) fn parts(&self) -> &[PackedPart] {
        self.weight.parts()
    }

    /// Those of packed weights, to be filled.
    pub(super) fn parts_mut(&mut self) -> &mut [PackedPart] {
        self.weight.parts_mut()
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
        // SAFETY: the weights have the shape that `shape` took from them; the rest is the caller's.
        unsafe {
            match &self.weight {
                Weight::Packed(parts) => products.run_packed(stream, parts, shape, [x, y], ends),
                Weight::Plain(w) if ends.is_none() => products.run(stream, shape, x, w.ptr(), y),
                Weight::Plain(w) => products.run_to(ends, stream, shape, [x, w.ptr(), y]),
            }
        }
    }
}
