//! The step as its kernels see it. Decode attention reads shrunk blocks as they are; where it cannot, and for sequences of several
//! rows, they stand in scratch frames, where each layer decodes them anew.

use std::collections::HashMap;

use super::super::error::CudaError;
use super::super::tables::DeviceTables;
use crate::SUB_BLOCKS;
use crate::backend::{BlockRef, KeptTables, StepInput};
use crate::kv::KvLayout;

/// Words of a `ebb::DecodeJob`: position, first frame of the source, first scratch frame, shrink.
pub(super) const DECODE_WORDS: usize = 4;
/// In place of a shrink.
const NONE: u32 = u32::MAX;

/// Scratch frames behind those of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Scratch {
    /// Blocks there is room for.
    pub(super) blocks: usize,
    /// Frames of a sub-block: as many as one layer's records ever touch. Slot `s` of a sub-block stands in scratch frame
    /// `s % slots`, so that no two slots of a layer share one.
    pub(super) slots: u32,
}

impl Scratch {
    /// Room for every shrunk block that a step can name: at most `blocks`, and no more than a pool of `frames` frames holds.
    pub(in crate::cuda) fn of(layout: &KvLayout, frames: u32, blocks: usize) -> Self {
        let (geometry, frame) = (layout.geometry(), layout.frame());
        let per_frame = frame.frame_bytes / geometry.sub_record_bytes();
        let of_layer = 2 * geometry.kv_heads;
        let slots = (0..geometry.layers)
            .map(|l| ((l + 1) * of_layer - 1) / per_frame - l * of_layer / per_frame + 1)
            .max();
        let smallest = layout.position_frames().into_iter().skip(1).min();
        let held = smallest.map_or(0, |least| frames as usize / least.max(1) as usize);
        Self {
            blocks: blocks.min(held),
            slots: slots.unwrap_or(1) as u32,
        }
    }

    /// Frames it takes.
    pub(in crate::cuda) fn frames(self) -> u32 {
        (self.blocks * SUB_BLOCKS) as u32 * self.slots
    }
}

/// The blocks to decode, and where the kernels find them.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    pub(super) jobs: Vec<[u32; DECODE_WORDS]>,
    /// The frames of the blocks of all jobs.
    pub(super) sources: Vec<u32>,
    /// Whether decoding sequences read shrunk blocks as they are.
    pub(super) mixed: bool,
    /// Jobs by a block's first frame and its position: a block that several sequences share is decoded once.
    seen: HashMap<(u32, u16), u32>,
    /// Shrinks of the step by the first frame that they write.
    targets: HashMap<u32, u32>,
}

/// What decides which shrunk blocks go to scratch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) scratch: Scratch,
    /// Frame where scratch begins.
    pub(super) first: u32,
    /// Whether decode attention reads shrunk blocks.
    pub(super) reads: bool,
}

impl Rewrite {
    /// Frames of a decoded block whose scratch begins at `target`.
    fn scratch_frames(
        layout: &KvLayout,
        scratch: Scratch,
        target: u32,
    ) -> impl Iterator<Item = u32> {
        let per_sub_block = layout.frame().frames_per_sub_block as u32;
        (0..SUB_BLOCKS as u32).flat_map(move |sub_block| {
            (0..per_sub_block)
                .map(move |slot| target + sub_block * scratch.slots + slot % scratch.slots)
        })
    }

    /// Whether a shrunk block that a sequence of `rows` rows reads goes to scratch; else it is read as it is. Of a shrink of this step
    /// it is not known whether it will fail: such a block is decoded from where it is found then.
    fn goes_to_scratch(&mut self, rule: Rule, rows: u32, frames: &[u32]) -> bool {
        let goes = !rule.reads || rows > 1 || self.targets.contains_key(&frames[0]);
        self.mixed |= !goes;
        goes
    }

    /// The first scratch frame of a block.
    fn add(&mut self, rule: Rule, (position, frames): (u16, &[u32])) -> u32 {
        let next = self.jobs.len() as u32;
        let at = *self.seen.entry((frames[0], position)).or_insert(next);
        let target = rule.first + at * SUB_BLOCKS as u32 * rule.scratch.slots;
        if at == next {
            let shrink = self.targets.get(&frames[0]).copied().unwrap_or(NONE);
            let source = self.sources.len() as u32;
            self.jobs.push([position.into(), source, target, shrink]);
            self.sources.extend_from_slice(frames);
        }
        target
    }

    /// Plans a step that lists its blocks: the same with scratch frames in place of shrunk blocks; none if all stay.
    pub(super) fn listed(
        &mut self,
        layout: &KvLayout,
        rule: Rule,
        input: &StepInput,
    ) -> Result<Option<StepInput>, CudaError> {
        self.clear(input);
        let mut goes = vec![false; input.blocks.len()];
        for seq in &input.seqs {
            for at in (seq.first_block as usize..).take(seq.blocks as usize) {
                let block = &input.blocks[at];
                let named = &input.frames[block.first_frame as usize..][..block.frames as usize];
                goes[at] |=
                    block.schedule_position > 0 && self.goes_to_scratch(rule, seq.rows, named);
            }
        }
        if !goes.contains(&true) {
            return Ok(None);
        }
        let mut frames = Vec::new();
        let mut blocks = Vec::with_capacity(input.blocks.len());
        for (block, goes) in input.blocks.iter().zip(goes) {
            let named = &input.frames[block.first_frame as usize..][..block.frames as usize];
            let first_frame = frames.len() as u32;
            if goes {
                let target = self.add(rule, (block.schedule_position, named));
                frames.extend(Self::scratch_frames(layout, rule.scratch, target));
            } else {
                frames.extend_from_slice(named);
            }
            blocks.push(BlockRef {
                schedule_position: if goes { 0 } else { block.schedule_position },
                first_frame,
                frames: frames.len() as u32 - first_frame,
            });
        }
        self.check(rule.scratch)?;
        Ok(Some(StepInput {
            blocks,
            frames,
            copies: Vec::new(),
            shrinks: Vec::new(),
            ..input.clone()
        }))
    }

    /// Plans a step over kept tables, which have the kernels read blocks in scratch frames until the next step. A block that is
    /// there for one sequence is there for all.
    pub(super) fn kept(
        &mut self,
        layout: &KvLayout,
        rule: Rule,
        input: &StepInput,
        (known, tables): (&KeptTables, &mut DeviceTables),
    ) -> Result<(), CudaError> {
        self.clear(input);
        tables.restore(known);
        for (rows, id, position, frames) in known.read(input).filter(|b| b.2 > 0) {
            if self.goes_to_scratch(rule, rows, frames) {
                let target = self.add(rule, (position, frames));
                tables.redirect(id, Self::scratch_frames(layout, rule.scratch, target));
            }
        }
        self.check(rule.scratch)
    }

    fn clear(&mut self, input: &StepInput) {
        self.jobs.clear();
        self.sources.clear();
        self.seen.clear();
        self.mixed = false;
        self.targets.clear();
        let firsts = input
            .shrinks
            .iter()
            .map(|s| input.frames[s.target as usize]);
        self.targets.extend(firsts.zip(0..));
    }

    fn check(&self, scratch: Scratch) -> Result<(), CudaError> {
        if self.jobs.len() <= scratch.blocks {
            return Ok(());
        }
        Err(CudaError::Unsupported(format!(
            "a step over {} shrunk blocks, but this backend was started for {}",
            self.jobs.len(),
            scratch.blocks
        )))
    }
}
