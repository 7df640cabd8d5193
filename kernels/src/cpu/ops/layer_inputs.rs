//! What each layer gets of a token beside the residual stream.

use super::activate::Activate;
use super::for_rows;
use super::norm::rms_norm_in_place;
use crate::cpu::math;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};
use crate::model::Activation;

/// From the projection of embeddings to inputs of layers, see
/// [`PerLayerInputs`](crate::model::PerLayerInputs).
#[derive(Clone, Copy)]
pub(crate) struct LayerInputs<'a> {
    /// `[width]`.
    pub(crate) norm: &'a [f32],
    pub(crate) eps: f32,
    /// Of the projection, before it is normalised.
    pub(crate) projection_multiplier: f32,
    /// Of the table's rows.
    pub(crate) embedding_multiplier: f32,
    /// Layers.
    pub(crate) layers: usize,
}

impl LayerInputs<'_> {
    /// `inputs`: `[rows][layers * width]`, the projections. `embed(row, out)` looks up the
    /// embedding, as wide, of a row's token.
    pub(crate) fn run(
        self,
        (pool, isa): (&mut Pool, Isa),
        inputs: &mut [f32],
        embed: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<(), TaskPanic> {
        let width = self.layers * self.norm.len();
        let rows = inputs.len() / width;
        let inputs = SharedSlice::new(inputs);
        for_rows(pool, rows, width, |first, end| {
            let mut embedding = vec![0.0; width];
            for row in first..end {
                embed(row, &mut embedding);
                isa.run(Row {
                    of: self,
                    // SAFETY: ranges of rows are disjoint.
                    inputs: unsafe { inputs.slice(row * width, width) },
                    embedding: &embedding,
                });
            }
        })
    }
}

struct Row<'a> {
    of: LayerInputs<'a>,
    inputs: &'a mut [f32],
    embedding: &'a [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let of = self.of;
        let width = of.norm.len();
        let embeddings = self.embedding.chunks_exact(width);
        for (x, embedding) in self.inputs.chunks_exact_mut(width).zip(embeddings) {
            x.iter_mut().for_each(|x| *x *= of.projection_multiplier);
            rms_norm_in_place(s, x, of.norm, of.eps);
            for (x, e) in x.iter_mut().zip(embedding) {
                *x = (*x + e * of.embedding_multiplier) * std::f32::consts::FRAC_1_SQRT_2;
            }
        }
    }
}

/// `gates = activation(gates) ⊙ inputs` of one layer: of rows of `stride` inputs those from `first`
/// on, as many as a row has gates.
pub(crate) fn open_layer_input(
    (pool, isa): (&mut Pool, Isa),
    activation: Activation,
    (gates, width): (&mut [f32], usize),
    (inputs, stride, first): (&[f32], usize, usize),
) -> Result<(), TaskPanic> {
    let rows = gates.len() / width;
    let gates = SharedSlice::new(gates);
    for_rows(pool, rows, width, |from, end| {
        for row in from..end {
            isa.run(Open {
                activation,
                // SAFETY: ranges of rows are disjoint.
                gates: unsafe { gates.slice(row * width, width) },
                input: &inputs[row * stride + first..][..width],
            });
        }
    })
}

struct Open<'a> {
    activation: Activation,
    gates: &'a mut [f32],
    input: &'a [f32],
}

impl Kernel for Open<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        math::map(s, &Activate(self.activation), self.gates);
        let opened = self.gates.iter_mut().zip(self.input);
        opened.for_each(|(gate, x)| *gate *= x);
    }
}
