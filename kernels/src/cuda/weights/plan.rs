//! Which linear layers stay packed, and in which parts.

use std::collections::HashMap;
use std::sync::Arc;

use super::LoadError;
use crate::cuda::driver::{Device, DeviceBuffer};
use crate::cuda::error::CudaError;
use crate::cuda::packed::{DeviceFormat, PackedPart, SLICE_OUTPUTS};
use crate::model::ops::{LinearName, Op, forward};
use crate::model::{ModelSpec, RandomWeights, TensorName, WeightSource};
use crate::weight_formats::{PackedTensor, Quantisation, QuantisedWeights, WeightFormat};

/// Tensors beside each other that are packed alike.
#[derive(Debug, Clone)]
pub(super) struct PartPlan {
    pub(super) format: DeviceFormat,
    /// Stacked matrices; what follows is each one's.
    pub(super) experts: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Slices have eight gates and what they open.
    pub(super) gated: bool,
    /// With their rows and formats.
    pub(super) tensors: Vec<(TensorName, usize, WeightFormat)>,
}

impl PartPlan {
    /// Of a tensor, or of so many experts with tensors like it, if kernels read its format.
    pub(super) fn of_tensor(
        tensor: &PackedTensor,
        experts: Option<usize>,
        gated: bool,
    ) -> Option<Self> {
        let format = DeviceFormat::of(tensor.format(), tensor.inputs())?;
        Some(Self {
            format: experts.map_or(format, |_| format.of_experts()),
            experts: experts.unwrap_or(1),
            inputs: tensor.inputs(),
            outputs: tensor.rows(),
            gated,
            tensors: Vec::new(),
        })
    }

    /// Of the codes and scales.
    pub(super) fn bytes(&self) -> usize {
        self.experts * self.format.bytes(self.inputs, self.outputs)
    }

    fn factors(&self) -> usize {
        self.experts * self.outputs.next_multiple_of(SLICE_OUTPUTS)
    }

    pub(super) fn allocate(&self, device: &Arc<Device>) -> Result<PackedPart, CudaError> {
        let what = "the packed weights";
        Ok(PackedPart {
            format: self.format,
            experts: self.experts,
            inputs: self.inputs,
            outputs: self.outputs,
            gated: self.gated,
            codes: DeviceBuffer::new(device, self.bytes(), what)?,
            // Those beyond the last output are read, too.
            factors: DeviceBuffer::filled(device, self.factors(), 0, what)?,
        })
    }

    /// The tensor and row of an output.
    pub(super) fn row(&self, output: usize) -> (usize, usize) {
        let mut row = output;
        for (index, (_, rows, _)) in self.tensors.iter().enumerate() {
            if row < *rows {
                return (index, row);
            }
            row -= rows;
        }
        unreachable!("output {output} of {}", self.outputs)
    }
}

/// Which linear layers are packed, in which parts.
#[derive(Debug, Clone, Default)]
pub(in crate::cuda) struct PackPlan {
    parts: HashMap<LinearName, Vec<PartPlan>>,
}

impl PackPlan {
    /// Of all that a source has packed and that kernels can read as it is.
    pub(in crate::cuda) fn of_source<W: WeightSource>(
        spec: &ModelSpec,
        source: &W,
    ) -> Result<Self, LoadError<W::Error>> {
        let mut parts = HashMap::new();
        for op in forward(spec) {
            let linears = match op {
                // The embedding is looked up, too.
                Op::Linear { linear, .. }
                    if linear == LinearName::LmHead && spec.tied_embeddings =>
                {
                    Vec::new()
                }
                Op::Linear { linear, .. } => vec![linear],
                Op::Experts { layer, .. } => {
                    let experts = spec.layers[layer].experts().into_iter();
                    let first = experts.map(|e| LinearName::first_of_experts(layer, e));
                    first.chain([LinearName::ExpertDown(layer)]).collect()
                }
                _ => Vec::new(),
            };
            let packed = |name| {
                let packed = source.packed(name);
                packed.map_err(|source| LoadError::Source { name, source })
            };
            for linear in linears {
                if let Some(of_linear) = of_linear(linear, spec, packed)? {
                    parts.insert(linear, of_linear);
                }
            }
        }
        Ok(Self { parts })
    }

    /// Of a plain model whose layers are quantised, as far as the quantisation takes them.
    pub(super) fn of_quantised(spec: &ModelSpec, quantisation: Quantisation) -> Self {
        let source = QuantisedWeights::new(
            RandomWeights {
                spec: spec.clone(),
                seed: 0,
            },
            quantisation,
        );
        match Self::of_source(spec, &source) {
            Ok(plan) => plan,
            Err(_) => unreachable!("random weights can be read"),
        }
    }

    /// The parts of a linear layer, if it is packed.
    pub(super) fn parts(&self, linear: LinearName) -> Option<&[PartPlan]> {
        self.parts.get(&linear).map(Vec::as_slice)
    }

    /// Bytes of all packed weights.
    pub(in crate::cuda) fn bytes(&self) -> u64 {
        let parts = self.parts.values().flatten();
        parts.map(|part| part.bytes() as u64).sum()
    }

    /// The tensors that are packed.
    pub(in crate::cuda) fn tensors(&self) -> impl Iterator<Item = TensorName> + '_ {
        let parts = self.parts.values().flatten();
        parts.flat_map(|part| part.tensors.iter().map(|(name, ..)| *name))
    }

    /// Bytes of every buffer of packed weights, and what they are.
    pub(in crate::cuda) fn buffers(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        let parts = self.parts.values().flatten();
        parts.flat_map(|part| {
            let title = part.format.title();
            [(title, part.bytes()), (title, 4 * part.factors())]
        })
    }

    /// The most weights of a layer's linear layer that may be unpacked, and of the output
    /// projection. Those of experts never are.
    pub(in crate::cuda) fn values(&self) -> [usize; 2] {
        let mut most = [0, 0];
        for (linear, parts) in self.parts.iter().filter(|(name, _)| !name.is_stacked()) {
            let values: usize = parts.iter().map(|part| part.inputs * part.outputs).sum();
            let of = &mut most[usize::from(*linear == LinearName::LmHead)];
            *of = values.max(*of);
        }
        most
    }
}

/// The parts of a linear layer; none if some of it has to be plain.
fn of_linear<E>(
    linear: LinearName,
    spec: &ModelSpec,
    packed: impl Fn(TensorName) -> Result<Option<WeightFormat>, E>,
) -> Result<Option<Vec<PartPlan>>, E> {
    let gated = linear.is_gated();
    let stacked = linear.is_stacked();
    let mut parts: Vec<PartPlan> = Vec::new();
    for name in linear.weights(spec) {
        let [rows, inputs] = name.matrix_shape(spec);
        let experts = if stacked { name.shape(spec)[0] } else { 1 };
        let Some(stored) = packed(name)? else {
            return Ok(None);
        };
        // The kernels copy 16 bytes at a time.
        let can = inputs.is_multiple_of(8) && rows.is_multiple_of(8);
        let Some(format) = DeviceFormat::of(stored, inputs).filter(|_| can) else {
            return Ok(None);
        };
        let format = if stacked { format.of_experts() } else { format };
        match parts.last_mut() {
            Some(last) if last.format == format => {
                last.outputs += rows;
                last.tensors.push((name, rows, stored));
            }
            _ => parts.push(PartPlan {
                format,
                experts,
                inputs,
                outputs: rows,
                gated,
                tensors: vec![(name, rows, stored)],
            }),
        }
    }
    // Gates and what they open are packed in turns, which takes one format.
    Ok((!gated || parts.len() == 1).then_some(parts))
}
