//! The packed tensors of a linear layer.

use super::PANEL;
use super::layout::{Kind, QuantisedMatrix};
use crate::cpu::gemm::PANEL as COLUMNS;
use crate::cpu::threads::Items;

/// The weights of a part of a linear layer.
#[derive(Debug)]
pub enum Weights {
    /// A tensor.
    Plain(QuantisedMatrix),
    /// Gate and up; [`QuantisedMatrix::can_join`].
    Gated([QuantisedMatrix; 2]),
}

/// A part of a linear layer: neighbouring outputs.
#[derive(Debug)]
pub struct Part {
    /// The first output.
    pub first: usize,
    /// What is multiplied with.
    pub weights: Weights,
    /// Of the part's outputs, padded to whole tasks of 32.
    pub bias: Option<Vec<f32>>,
}

impl Part {
    /// `bias` is as long as the outputs.
    pub fn new(first: usize, weights: Weights, bias: Option<Vec<f32>>) -> Self {
        let mut part = Self {
            first,
            weights,
            bias: None,
        };
        part.bias = bias.map(|mut bias| {
            bias.resize(part.outputs().next_multiple_of(COLUMNS), 0.0);
            bias
        });
        part
    }

    /// The matrices.
    pub fn matrices(&self) -> &[QuantisedMatrix] {
        match &self.weights {
            Weights::Plain(matrix) => std::slice::from_ref(matrix),
            Weights::Gated(matrices) => matrices,
        }
    }

    /// How many outputs there are.
    pub fn outputs(&self) -> usize {
        self.matrices()[0].outputs()
    }

    /// Outputs of a pair of panels: 32, or 16 if gated.
    pub(super) fn width(&self) -> usize {
        match self.weights {
            Weights::Plain(_) => COLUMNS,
            Weights::Gated(_) => PANEL,
        }
    }

    pub(super) fn pairs(&self) -> usize {
        self.outputs().div_ceil(self.width())
    }

    /// The two panels of a pair; the last may be alone.
    #[inline(always)]
    pub(super) fn pair(&self, pair: usize) -> [Option<(&QuantisedMatrix, usize)>; 2] {
        match &self.weights {
            Weights::Plain(matrix) => [2 * pair, 2 * pair + 1]
                .map(|panel| (panel < matrix.layout.panels()).then_some((matrix, panel))),
            Weights::Gated([gate, up]) => [Some((gate, pair)), Some((up, pair))],
        }
    }
}

/// Whether any part needs quantised activations.
pub(crate) fn needs_quantised(parts: &[Part]) -> bool {
    let mut matrices = parts.iter().flat_map(Part::matrices);
    matrices.any(|matrix| matrix.layout.kind != Kind::E4M3)
}

/// Start of the pair where a thread's share of the parts begins.
pub(crate) fn start_of_share(parts: &[Part], share: &Items<'_>) -> *const u8 {
    let pairs = parts.iter().map(Part::pairs).sum();
    let (part, pair) = locate(parts, share.start_of(pairs));
    part.pair(pair)[0].map_or(std::ptr::null(), |(matrix, panel)| matrix.panel(panel))
}

/// The part that has a pair of all parts' pairs, and which of its own it is.
pub(super) fn locate(parts: &[Part], mut pair: usize) -> (&Part, usize) {
    for part in parts {
        match pair.checked_sub(part.pairs()) {
            Some(left) => pair = left,
            None => return (part, pair),
        }
    }
    // Only of a share without items: any place will do.
    (&parts[0], 0)
}
