//! Loads layers of experts, one expert behind the other: no more of a stacked tensor is in memory
//! than one expert's.

use super::parts::{Part, parts_of};
use super::{LoadError, LoadOptions, Loader};
use crate::cpu::experts::{Experts, is_fused};
use crate::cpu::gemm::{Columns, PackedMatrix};
use crate::cpu::linear::Linear;
use crate::cpu::packed::{self, QuantisedMatrix};
use crate::model::ops::LinearName;
use crate::model::{ExpertsSpec, LayerTensor as L, ModelSpec, TensorName, WeightSource};
use crate::weight_formats::PackedRows;

fn spec_of(spec: &ModelSpec, layer: usize) -> &ExpertsSpec {
    match spec.layers[layer].experts() {
        Some(experts) => experts,
        None => unreachable!("the program has experts where the spec has them"),
    }
}

/// The products of a layer's experts, and whether they open gates themselves.
fn products(layer: usize, experts: &ExpertsSpec) -> [(LinearName, bool); 2] {
    [
        (
            LinearName::first_of_experts(layer, experts),
            is_fused(experts),
        ),
        (LinearName::ExpertDown(layer), false),
    ]
}

/// Bytes of a layer's matrices.
pub(super) fn bytes<W: WeightSource>(
    spec: &ModelSpec,
    source: &W,
    options: LoadOptions,
    layer: usize,
) -> Result<usize, LoadError<W::Error>> {
    let experts = spec_of(spec, layer);
    let mut bytes = 0usize;
    for (linear, is_gated) in products(layer, experts) {
        for part in parts_of(spec, source, options, linear, is_gated)? {
            let each = part.bytes(spec, is_gated);
            bytes = bytes.saturating_add(each.saturating_mul(experts.experts));
        }
    }
    let hidden = spec.hidden;
    bytes = bytes.saturating_add(PackedMatrix::bytes(hidden, experts.experts, false));
    if experts.shared.is_some_and(|shared| shared.gated) {
        bytes = bytes.saturating_add(PackedMatrix::bytes(hidden, 1, false));
    }
    Ok(bytes)
}

impl<W: WeightSource> Loader<'_, W> {
    pub(super) fn experts(&mut self, layer: usize) -> Result<Experts, LoadError<W::Error>> {
        let spec = self.spec;
        let experts = spec_of(spec, layer);
        let name = |tensor| TensorName::Layer(layer, tensor);
        let bias = experts
            .router_bias
            .then(|| self.vector(name(L::RouterBias)));
        let router = self.plain(name(L::Router), bias.transpose()?)?;
        let correction = experts.routing.correction;
        let correction = correction.then(|| self.in_halves(name(L::RouterCorrection)));
        let scales = experts.weight_scales;
        let scales = scales.then(|| self.vector(name(L::ExpertScale)));
        let has_score = experts.shared.is_some_and(|shared| shared.gated);
        let shared_score = has_score.then(|| self.plain(name(L::SharedScore), None));
        let [gate_up, down] = products(layer, experts);
        Ok(Experts {
            router,
            correction: correction.transpose()?,
            scales: scales.transpose()?,
            shared_score: shared_score.transpose()?,
            gate_up: self.products(gate_up, experts.experts)?,
            down: self.products(down, experts.experts)?,
        })
    }

    /// A linear layer of one tensor, in bf16.
    fn plain(
        &mut self,
        name: TensorName,
        bias: Option<Vec<f32>>,
    ) -> Result<Linear, LoadError<W::Error>> {
        let matrix = self.expanded(&[name], false)?;
        let mut linear = Linear::new(matrix.inner());
        linear.push_expanded(matrix, bias);
        Ok(linear)
    }

    /// A linear layer for each expert.
    fn products(
        &mut self,
        (linear, is_gated): (LinearName, bool),
        experts: usize,
    ) -> Result<Vec<Linear>, LoadError<W::Error>> {
        let (spec, source) = (self.spec, self.source);
        let parts = parts_of(spec, source, self.options, linear, is_gated)?;
        let mut of_tensors = Vec::new();
        for bias in linear.biases(spec) {
            of_tensors.push(self.vector(bias)?);
        }
        let (inputs, _) = linear.shape(spec);
        let mut linears = Vec::with_capacity(experts);
        for expert in 0..experts {
            let mut linear = Linear::new(inputs);
            let mut biases = of_tensors.iter().map(|bias| {
                let each = bias.len() / experts;
                &bias[expert * each..][..each]
            });
            for part in &parts {
                match part {
                    Part::Expanded(names) => {
                        let matrix = self.expanded_expert(names, expert, is_gated)?;
                        let bias: Vec<f32> = biases
                            .by_ref()
                            .take(names.len())
                            .flatten()
                            .copied()
                            .collect();
                        linear.push_expanded(matrix, Some(bias).filter(|bias| !bias.is_empty()));
                    }
                    Part::Packed(tensors) => {
                        let mut matrices = Vec::with_capacity(tensors.len());
                        for (name, format) in tensors {
                            let [outputs, inputs] = name.matrix_shape(spec);
                            let mut matrix =
                                QuantisedMatrix::new(&mut self.memory, *format, inputs, outputs);
                            let first = expert * outputs;
                            let read = |row, rows: PackedRows<'_>| {
                                source.read_packed(*name, first + row, rows)
                            };
                            let filled = matrix.fill(self.pool, read)?;
                            filled.map_err(|source| LoadError::Source {
                                name: *name,
                                source,
                            })?;
                            matrices.push(matrix);
                        }
                        let weights = match <[_; 2]>::try_from(matrices) {
                            Ok(both) => packed::Weights::Gated(both),
                            Err(mut one) => packed::Weights::Plain(one.remove(0)),
                        };
                        linear.push_packed(weights, biases.next().map(<[f32]>::to_vec));
                    }
                }
            }
            linears.push(linear);
        }
        for name in linear.weights(spec) {
            self.finish(name, name.shape(spec).iter().product());
        }
        Ok(linears)
    }

    /// Reads an expert's rows of tensors into one bf16 matrix.
    fn expanded_expert(
        &mut self,
        names: &[TensorName],
        expert: usize,
        is_gated: bool,
    ) -> Result<PackedMatrix, LoadError<W::Error>> {
        let (inputs, outputs) = super::shape(self.spec, names);
        let outputs = if is_gated { outputs / 2 } else { outputs };
        let mut matrix = self.memory.matrix(inputs, outputs, is_gated);
        let mut first = 0;
        for name in names {
            let columns = match name {
                TensorName::Layer(_, L::ExpertGate) if is_gated => Columns::Gate,
                TensorName::Layer(_, L::ExpertUp) if is_gated => Columns::Up,
                _ => Columns::From(first),
            };
            let [rows, _] = name.matrix_shape(self.spec);
            let values = self.source.load_rows(*name, expert * rows, rows);
            let values = values.map_err(|source| LoadError::Source {
                name: *name,
                source,
            })?;
            matrix.fill(self.pool, columns, &values)?;
            first += rows;
        }
        Ok(matrix)
    }
}
