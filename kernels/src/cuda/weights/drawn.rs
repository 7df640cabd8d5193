//! Packed weights that are not read from a source: random ones, and a tensor at hand.

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;

use super::Weights;
use super::plan::PartPlan;
use crate::cuda::driver::Device;
use crate::cuda::error::CudaError;
use crate::cuda::packed::{PackedPart, PackedSlice, SLICE_OUTPUTS, output_of};
use crate::model::ops::LinearName;
use crate::model::{ModelSpec, Uniform};
use crate::weight_formats::{PackedTensor, Quantisation};

/// Slices of random weights that are drawn; the others are the same again.
const DRAWN_SLICES: usize = 16;

impl Weights {
    /// Fills packed parts with random weights, quantised: of each the first few slices again and
    /// again, as nobody reads what they say.
    pub(super) fn draw_packed(
        &mut self,
        spec: &ModelSpec,
        quantisation: Quantisation,
        seed: u64,
    ) -> Result<(), CudaError> {
        let mut drawn = HashMap::new();
        for (linear, parts) in self.packed_parts() {
            for part in parts {
                let drawn: &mut Vec<PackedSlice> = drawn
                    .entry((part.format, part.inputs))
                    .or_insert_with(|| draw(part, spec, linear, quantisation, seed));
                let slices: Vec<_> = drawn.iter().cycle().take(part.slices()).collect();
                for expert in 0..part.experts {
                    part.write(expert, 0, &slices)?;
                }
            }
        }
        Ok(())
    }
}

/// Random slices.
fn draw(
    part: &PackedPart,
    spec: &ModelSpec,
    linear: LinearName,
    quantisation: Quantisation,
    seed: u64,
) -> Vec<PackedSlice> {
    let uniform = Uniform::of(spec, linear.weights(spec)[0], seed);
    let mut weights = vec![bf16::ZERO; DRAWN_SLICES * SLICE_OUTPUTS * part.inputs];
    uniform.fill(0, &mut weights);
    let weights: Vec<f32> = weights.iter().map(|w| w.to_f32()).collect();
    let tensor = quantisation.tensor(part.inputs, &weights);
    let slice = |slice: usize| {
        let rows = std::array::from_fn(|row| Some((&tensor, slice * SLICE_OUTPUTS + row)));
        PackedSlice::new(part.format, part.inputs, &rows)
    };
    (0..DRAWN_SLICES).map(slice).collect()
}

/// A tensor on the device; none if no kernel reads its format.
pub(in crate::cuda) fn pack_tensor(
    device: &Arc<Device>,
    tensor: &PackedTensor,
    gated: bool,
) -> Result<Option<PackedPart>, CudaError> {
    pack(device, std::slice::from_ref(tensor), None, gated)
}

/// As many stacked matrices, which are these tensors in turn, all of one shape and format.
pub(in crate::cuda) fn pack_experts(
    device: &Arc<Device>,
    tensors: &[PackedTensor],
    experts: usize,
    gated: bool,
) -> Result<Option<PackedPart>, CudaError> {
    pack(device, tensors, Some(experts), gated)
}

fn pack(
    device: &Arc<Device>,
    tensors: &[PackedTensor],
    experts: Option<usize>,
    gated: bool,
) -> Result<Option<PackedPart>, CudaError> {
    let Some(plan) = PartPlan::of_tensor(&tensors[0], experts, gated) else {
        return Ok(None);
    };
    let mut part = plan.allocate(device)?;
    for (index, tensor) in tensors.iter().enumerate() {
        let slice = |slice: usize| {
            let rows = std::array::from_fn(|row| {
                let output = output_of(slice, row, part.outputs, gated);
                output.map(|output| (tensor, output))
            });
            PackedSlice::new(part.format, part.inputs, &rows)
        };
        let slices: Vec<_> = (0..part.slices()).map(slice).collect();
        let slices: Vec<_> = slices.iter().collect();
        for expert in (index..plan.experts).step_by(tensors.len()) {
            part.write(expert, 0, &slices)?;
        }
    }
    Ok(Some(part))
}
