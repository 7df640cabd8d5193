//! From the scheduler's plan to the backend's submission.

use std::ops::Range;

use ebb_block_manager::{BlockManager, Table};
use ebb_kernels::backend::{BlockRef, FrameCopy, SeqRows, Shrink, StepInput};
use ebb_scheduler::{Logits, StepPlan};

/// Fills `input` (reused between steps) with what `plan` asks for, but for its draws. With `draws`, the backend chooses the
/// tokens, and only the logits of whole prompts come back.
pub(super) fn fill(input: &mut StepInput, plan: &StepPlan, blocks: &BlockManager, draws: bool) {
    input.copies.clear();
    input
        .copies
        .extend(plan.copies.iter().map(|&(src, dst)| FrameCopy { src, dst }));
    input.tokens.clear();
    input.tokens.extend_from_slice(&plan.tokens);
    input.seqs.clear();
    input.blocks.clear();
    input.frames.clear();
    input.logit_rows.clear();
    input.shrinks.clear();
    input.draws.clear();
    input.edits.clear();
    for job in &plan.shrinks {
        let source = append_frames(input, &job.old);
        let target = append_frames(input, &job.new);
        input.shrinks.push(Shrink {
            from: job.from,
            to: job.to,
            source,
            target,
        });
    }
    for slice in &plan.slices {
        let blocks = append_table(input, blocks.table(slice.seq));
        input.seqs.push(SeqRows {
            first_row: slice.tokens.start,
            rows: slice.tokens.len() as u32,
            position: slice.position,
            first_block: blocks.start,
            blocks: blocks.len() as u32,
        });
        match slice.logits {
            Logits::None => {}
            Logits::Last { .. } if draws => {}
            Logits::Last { .. } => input.logit_rows.push(slice.tokens.end - 1),
            Logits::All { .. } => input.logit_rows.extend(slice.tokens.clone()),
        }
    }
}

/// Appends frames; returns where they begin in `input.frames`.
pub(crate) fn append_frames(input: &mut StepInput, frames: &[u32]) -> u32 {
    let first = input.frames.len() as u32;
    input.frames.extend_from_slice(frames);
    first
}

/// Appends a sequence's block table; returns where its blocks lie in `input.blocks`.
pub(crate) fn append_table(input: &mut StepInput, table: Table<'_>) -> Range<u32> {
    let first = input.blocks.len() as u32;
    for (schedule_position, frames) in table.iter() {
        let first_frame = append_frames(input, frames);
        input.blocks.push(BlockRef {
            schedule_position,
            first_frame,
            frames: frames.len() as u32,
        });
    }
    first..input.blocks.len() as u32
}
