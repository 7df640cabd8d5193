//! From the scheduler's plan to the backend's submission.

use std::ops::Range;

use ebb_block_manager::{BlockManager, Table, TableDelta as Delta};
use ebb_kernels::backend::{BlockRef, FrameCopy, SeqRows, Shrink, StepInput, TableDelta};
use ebb_scheduler::{Logits, StepPlan};

/// What a backend does itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skills {
    /// It chooses the tokens; only the logits of whole prompts come back.
    pub(super) draws: bool,
    /// It keeps the block tables and takes changes of them.
    pub(super) keeps_tables: bool,
}

/// Fills `input` (reused between steps) with what `plan` asks for, but for its draws.
pub(super) fn fill(input: &mut StepInput, plan: &StepPlan, blocks: &BlockManager, skills: Skills) {
    let Skills {
        draws,
        keeps_tables,
    } = skills;
    input.deltas.clear();
    input.slots.clear();
    if keeps_tables {
        input.deltas.extend(plan.deltas.iter().map(delta));
    }
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
        let blocks = if keeps_tables {
            input.slots.push(slice.slot.0);
            0..0
        } else {
            append_table(input, blocks.table(slice.seq))
        };
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

fn delta(delta: &Delta) -> TableDelta {
    match *delta {
        Delta::Row { slot, index, block } => TableDelta::Row {
            slot: slot.0,
            index,
            block: block.0,
        },
        Delta::Block { block, position } => TableDelta::Block {
            block: block.0,
            position,
        },
        Delta::Frame {
            block,
            index,
            frame,
        } => TableDelta::Frame {
            block: block.0,
            index,
            frame,
        },
    }
}

/// Appends frames; returns where they begin in `input.frames`.
pub fn append_frames(input: &mut StepInput, frames: &[u32]) -> u32 {
    let first = input.frames.len() as u32;
    input.frames.extend_from_slice(frames);
    first
}

/// Appends a sequence's block table; returns where its blocks lie in `input.blocks`.
pub fn append_table(input: &mut StepInput, table: Table<'_>) -> Range<u32> {
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
