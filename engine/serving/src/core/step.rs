//! From the scheduler's plan to the backend's submission.

use ebb_block_manager::TableDelta as Delta;
use ebb_kernels::backend::{FrameCopy, StateCopy, StepInput, TableDelta};
use ebb_scheduler::{Logits, StepPlan};

// Of a block that lies behind sliding windows.
const _: () = assert!(ebb_block_manager::NO_FRAME == ebb_kernels::backend::NO_FRAME);

/// Fills `input` (reused between steps) with what `plan` asks for, but for its samples.
/// `device_samples`: the backend chooses the tokens, so only the logits of whole prompts come back.
pub(super) fn fill(input: &mut StepInput, plan: &StepPlan, device_samples: bool) {
    input.clear();
    input.deltas.extend(plan.deltas.iter().map(table_delta));
    let copies = plan.copies.iter();
    input
        .copies
        .extend(copies.map(|&(src, dst)| FrameCopy { src, dst }));
    let states = plan.state_copies.iter();
    input
        .state_copies
        .extend(states.map(|&(src, dst)| StateCopy { src, dst }));
    for job in &plan.shrinks {
        input.push_shrink((job.from, &job.old), (job.to, &job.new));
    }
    for slice in &plan.slices {
        let tokens = slice.tokens.start as usize..slice.tokens.end as usize;
        let rows = input.push_seq(slice.slot.0, slice.position, &plan.tokens[tokens]);
        match slice.logits {
            Logits::None => {}
            Logits::Last { .. } if device_samples => {}
            Logits::Last { .. } => input.logit_rows.push(rows.end - 1),
            Logits::All { .. } => input.logit_rows.extend(rows),
        }
    }
}

/// A change of the block manager's tables as backends take it.
pub fn table_delta(delta: &Delta) -> TableDelta {
    match *delta {
        Delta::Row { slot, index, block } => TableDelta::Row {
            slot: slot.0,
            index,
            block: block.0,
        },
        Delta::Block { block, level } => TableDelta::Block {
            block: block.0,
            level,
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
