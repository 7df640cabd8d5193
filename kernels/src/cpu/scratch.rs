//! Activations of a step, kept between steps.

use super::attention::{Scratch as AttentionScratch, max_query_rows};
use super::experts::{ExpertScratch, RowNeeds};
use super::floats::Floats;
use super::ops::{RopeTable, RowPlace};
use super::packed::Activations;
use crate::backend::BackendError;
use crate::model::ops::Buffer;

/// Activations, row-major. They grow to the largest step seen and are then reused.
#[derive(Debug)]
pub(super) struct Scratch {
    /// By [`Buffer`].
    buffers: [Floats; Buffer::COUNT],
    /// Floats of a row of each.
    widths: [usize; Buffer::COUNT],
    /// A product's input, quantised.
    pub(super) quantised: Activations,
    /// Inputs of the widest product that quantises them.
    quantised_inputs: usize,
    /// Of layers of experts.
    pub(super) experts: ExpertScratch,
    expert_needs: RowNeeds,
    /// Results of split attention units over single blocks.
    pub(super) partials: Floats,
    /// One per thread.
    pub(super) attention: Vec<AttentionScratch>,
    /// One for each rotary embedding of the model.
    pub(super) ropes: Vec<RopeTable>,
    pub(super) places: Vec<RowPlace>,
}

impl Scratch {
    /// `head_dims`: channels of the widest head, and of a record; `group`: query heads of a KV
    /// head, the most.
    pub(super) fn new(
        (head_dims, group): ((usize, usize), usize),
        widths: [usize; Buffer::COUNT],
        quantised_inputs: usize,
        expert_needs: RowNeeds,
        ropes: usize,
        threads: usize,
    ) -> Self {
        let rows = max_query_rows(group);
        Self {
            buffers: Default::default(),
            widths,
            quantised: Activations::default(),
            quantised_inputs,
            experts: ExpertScratch::default(),
            expert_needs,
            partials: Floats::default(),
            attention: (0..threads)
                .map(|_| AttentionScratch::new(head_dims.0, head_dims.1, rows))
                .collect(),
            ropes: (0..ropes).map(|_| RopeTable::default()).collect(),
            places: Vec::new(),
        }
    }

    /// Makes room for a step.
    pub(super) fn reserve(
        &mut self,
        rows: usize,
        logit_rows: usize,
        partial_floats: usize,
    ) -> Result<(), BackendError> {
        let counts = (0..Buffer::COUNT).map(|buffer| match buffer {
            _ if buffer == Buffer::Logits as usize => logit_rows,
            _ => rows,
        });
        let lens = self.widths.iter().zip(counts);
        let lens = lens.map(|(width, count)| width.saturating_mul(count));
        let buffers = self.buffers.iter_mut().zip(lens);
        for (buffer, len) in buffers.chain([(&mut self.partials, partial_floats)]) {
            let bytes = len.saturating_mul(size_of::<f32>());
            let grown = buffer.grow(len);
            grown.map_err(|_| BackendError::OutOfMemory { bytes, rows })?;
        }
        let experts = &mut self.experts;
        let grown = experts.reserve(&self.expert_needs, rows, &mut self.quantised);
        grown.map_err(|_| BackendError::OutOfMemory {
            bytes: self.expert_needs.bytes(rows),
            rows,
        })?;
        let inputs = self.quantised_inputs;
        let grown = self.quantised.reserve(rows, inputs);
        grown.map_err(|_| BackendError::OutOfMemory {
            bytes: Activations::bytes(rows, inputs),
            rows,
        })
    }

    /// The first `rows` rows of a buffer.
    pub(super) fn rows(&self, buffer: Buffer, rows: usize) -> &[f32] {
        &self.buffers[buffer as usize][..rows * self.widths[buffer as usize]]
    }

    /// The first `rows` rows of a buffer, to write.
    pub(super) fn rows_mut(&mut self, buffer: Buffer, rows: usize) -> &mut [f32] {
        &mut self.buffers[buffer as usize][..rows * self.widths[buffer as usize]]
    }

    /// Takes a buffer out, to be written while others are read; [`Self::put`] puts it back.
    pub(super) fn take(&mut self, buffer: Buffer) -> Floats {
        std::mem::take(&mut self.buffers[buffer as usize])
    }

    /// Puts a buffer back.
    pub(super) fn put(&mut self, buffer: Buffer, floats: Floats) {
        self.buffers[buffer as usize] = floats;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_in_bytes() {
        // No buffers but the quantised input, whose blocks of 32 have 128 bytes.
        let mut scratch = Scratch::new(
            ((16, 16), 1),
            [0; Buffer::COUNT],
            1 << 20,
            RowNeeds::default(),
            0,
            1,
        );
        let rows = 1 << 40;
        let error = scratch.reserve(rows, 0, 0).unwrap_err();
        let bytes = rows * (1 << 20) / 32 * 128;
        assert_eq!(error, BackendError::OutOfMemory { bytes, rows });
    }
}
