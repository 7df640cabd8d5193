//! Packed weights from a source to the device: threads pack slices, the calling one sends them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use super::plan::{PackPlan, PartPlan};
use super::{LoadError, Weights};
use crate::cuda::packed::{PackedPart, PackedSlice, SLICE_OUTPUTS, output_of};
use crate::model::WeightSource;
use crate::weight_formats::PackedTensor;

/// Slices that are packed and sent together.
const TOGETHER: usize = 64;

impl Weights {
    /// Fills the packed parts that `plan` names. `progress` is told of bytes.
    pub(super) fn fill_packed<W: WeightSource>(
        &mut self,
        plan: &PackPlan,
        source: &W,
        threads: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), LoadError<W::Error>> {
        for (linear, parts) in self.packed_parts() {
            let Some(plans) = plan.parts(linear) else {
                continue;
            };
            for (plan, part) in plans.iter().zip(parts) {
                fill_part(plan, part, source, threads)?;
                progress(plan.bytes() as u64);
            }
        }
        Ok(())
    }
}

/// Has threads pack a part, and sends what they have packed.
fn fill_part<W: WeightSource>(
    plan: &PartPlan,
    part: &mut PackedPart,
    source: &W,
    threads: usize,
) -> Result<(), LoadError<W::Error>> {
    let each = part.slices();
    let slices = each * part.experts;
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (sender, packed) = sync_channel(threads);
        for _ in 0..threads.min(slices.div_ceil(TOGETHER)) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let first = next.fetch_add(TOGETHER, Ordering::Relaxed);
                    if first >= slices {
                        break;
                    }
                    let these = first..slices.min(first + TOGETHER);
                    let these = these.map(|slice| pack(plan, source, slice / each, slice % each));
                    let these: Result<Vec<_>, _> = these.collect();
                    let is_error = these.is_err();
                    // Nobody listens any more once others have failed.
                    if sender.send((first, these)).is_err() || is_error {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (first, slices) in packed {
            let slices: Vec<_> = slices?;
            let mut rest: Vec<_> = slices.iter().collect();
            let mut first = first;
            while !rest.is_empty() {
                let count = (each - first % each).min(rest.len());
                let others = rest.split_off(count);
                part.write(first / each, first % each, &rest)?;
                (first, rest) = (first + count, others);
            }
        }
        Ok(())
    })
}

/// Reads a slice's outputs of a matrix, which neighbours of each tensor are, and packs them.
fn pack<W: WeightSource>(
    plan: &PartPlan,
    source: &W,
    expert: usize,
    slice: usize,
) -> Result<PackedSlice, LoadError<W::Error>> {
    // Of each output its tensor and row.
    let places: [Option<(usize, usize)>; SLICE_OUTPUTS] = std::array::from_fn(|row| {
        let output = output_of(slice, row, plan.outputs, plan.gated);
        output.map(|output| plan.row(output))
    });
    // Of each tensor its first row here, and the rows.
    let mut read = Vec::with_capacity(plan.tensors.len());
    for (tensor, &(name, each, format)) in plan.tensors.iter().enumerate() {
        let rows = || places.iter().flatten().filter(|place| place.0 == tensor);
        let first = rows().map(|place| place.1).min().unwrap_or(0);
        let count = rows().map(|place| place.1 + 1).max().unwrap_or(first) - first;
        let mut part = PackedTensor::new(format, count, plan.inputs);
        if count > 0 {
            source
                .read_packed(name, expert * each + first, part.rows_mut(0, count))
                .map_err(|source| LoadError::Source { name, source })?;
        }
        read.push((first, part));
    }
    let rows = places.map(|place| {
        let (tensor, row) = place?;
        let (first, part) = &read[tensor];
        Some((part, row - first))
    });
    Ok(PackedSlice::new(plan.format, plan.inputs, &rows))
}
