//! A linear layer on the CPU.

use super::gemm::{Epilogue, PANEL, PackedMatrix, Product};
use super::simd::Isa;
use super::threads::{Pool, TaskPanic};

/// `y = W x + b` with bf16 weights, packed for the product that reads them.
#[derive(Debug)]
pub(super) struct Linear {
    weight: PackedMatrix,
    /// Padded to whole panels.
    bias: Option<Vec<f32>>,
}

/// What becomes of the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// They are stored.
    Store,
    /// They are added to what is there, without a bias.
    Add,
    /// They are gates and what they open: `silu(gate) * up` is stored.
    SwiGlu,
}

impl Linear {
    /// `bias` is as long as the outputs.
    pub(super) fn new(weight: PackedMatrix, bias: Option<Vec<f32>>) -> Self {
        let bias = bias.map(|mut bias| {
            bias.resize(weight.panels() * PANEL, 0.0);
            bias
        });
        Self { weight, bias }
    }

    /// Bytes that a product reads.
    pub(super) fn bytes(&self) -> usize {
        let outputs = self.weight.outputs() * if self.weight.is_gated() { 2 } else { 1 };
        2 * self.weight.inner() * outputs
    }

    /// The weights of one output, `inner` floats: the embedding of a token where the two are tied.
    pub(super) fn column(&self, output: usize, out: &mut [f32]) {
        self.weight.column(output, out);
    }

    /// Multiplies `rows` rows of `input` into `output`; `next` is multiplied with after that, so
    /// memory fetches it meanwhile.
    pub(super) fn multiply(
        &self,
        (pool, isa): (&mut Pool, Isa),
        rows: usize,
        (input, output): (&[f32], &mut [f32]),
        then: Then,
        next: Option<&Linear>,
    ) -> Result<(), TaskPanic> {
        let epilogue = match (then, &self.bias) {
            (Then::Store, Some(bias)) => Epilogue::Bias(bias),
            (Then::Store, None) => Epilogue::Store,
            (Then::Add, None) => Epilogue::Add,
            (Then::SwiGlu, None) => Epilogue::SwiGlu,
            (Then::Add | Then::SwiGlu, Some(_)) => unreachable!("the program fuses no biases"),
        };
        let product = Product {
            rows,
            a: input,
            w: &self.weight,
            epilogue,
            next: next.map(|next| &next.weight),
        };
        product.run(pool, isa, output)
    }
}
