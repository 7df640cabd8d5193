//! A loaded model.

use half::bf16;

use super::experts::Experts;
use super::linear::Linear;
use super::math::Xielu;
use super::packed::QuantisedMatrix;
use super::program::LoadedOp;
use super::recurrent::RecurrentWeights;
use crate::weight_formats::WeightFormat;

/// A model's weights, and the program that refers to them by index.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab][hidden]`; none if it is the output projection too, the last linear layer.
    pub(super) embedding: Option<Embedding>,
    /// Of per-layer inputs.
    pub(super) per_layer_embedding: Option<Embedding>,
    pub(super) linears: Vec<Linear>,
    /// Weights and biases.
    pub(super) norms: Vec<Vec<f32>>,
    /// Of each layer: query norm, key norm, if it has them.
    pub(super) qk_norms: Vec<Option<(Vec<f32>, Vec<f32>)>>,
    /// Of each layer: a score of each query head, if it has sinks.
    pub(super) sinks: Vec<Option<Vec<f32>>>,
    /// Of each layer: what it multiplies the residual stream by, if it does.
    pub(super) output_scales: Vec<Option<f32>>,
    /// Of each layer whose MLP has it.
    pub(super) xielus: Vec<Option<Xielu>>,
    /// Of each layer, if it is recurrent.
    pub(super) recurrent: Vec<Option<RecurrentWeights>>,
    /// Of each layer, if it has any.
    pub(super) experts: Vec<Option<Experts>>,
    pub(super) ops: Vec<LoadedOp>,
}

/// A table of embeddings.
#[derive(Debug)]
pub(super) enum Embedding {
    /// In bf16.
    Plain(Vec<bf16>),
    /// Packed; rows are dequantised as they are looked up.
    Packed(QuantisedMatrix),
}

impl Embedding {
    /// The row of a token.
    pub(super) fn row(&self, token: usize, out: &mut [f32]) {
        match self {
            Self::Plain(table) => {
                let values = &table[token * out.len()..][..out.len()];
                out.iter_mut()
                    .zip(values)
                    .for_each(|(x, v)| *x = v.to_f32());
            }
            Self::Packed(table) => table.row(token, out),
        }
    }
}

impl Weights {
    /// The embedding of a token.
    pub(super) fn embed(&self, token: usize, out: &mut [f32]) {
        match &self.embedding {
            Some(embedding) => embedding.row(token, out),
            None => {
                let lm_head = self.linears.last().expect("a program ends with the logits");
                lm_head.column(token, out);
            }
        }
    }

    /// Bytes of matrices by format, the most first. (Norms and biases are f32 and small.)
    pub(super) fn bytes_by_format(&self) -> Vec<(String, u64)> {
        let embeddings = self.embedding.iter().chain(&self.per_layer_embedding);
        let embeddings = embeddings.map(|embedding| match embedding {
            Embedding::Plain(table) => (None, 2 * table.len()),
            Embedding::Packed(table) => (Some(table.format()), table.len()),
        });
        let of_experts = self.experts.iter().flatten().flat_map(Experts::linears);
        let linears = self.linears.iter().chain(of_experts);
        let linears = linears.flat_map(Linear::bytes_by_format);
        let mut all: Vec<(String, u64)> = Vec::new();
        for (format, bytes) in embeddings.chain(linears) {
            let name = format.map_or("bf16".to_owned(), |f: WeightFormat| f.codes.to_string());
            match all.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sum)) => *sum += bytes as u64,
                None => all.push((name, bytes as u64)),
            }
        }
        all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        all
    }

    /// Inputs of the widest product that quantises its activations.
    pub(super) fn quantised_inputs_max(&self) -> usize {
        let inputs = self.linears.iter().map(Linear::quantised_inputs);
        inputs.max().unwrap_or(0)
    }

    /// Inputs of the widest product of experts that quantises its activations.
    pub(super) fn experts_quantised_inputs_max(&self) -> usize {
        let linears = self.experts.iter().flatten().flat_map(Experts::linears);
        linears.map(Linear::quantised_inputs).max().unwrap_or(0)
    }
}
