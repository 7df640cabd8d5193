//! The step as the kernels for 16-bit pages see it: shrunk blocks stand in scratch frames, where each layer decodes them anew.

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
    /// Jobs by a block's first frame and its position: a block that several sequences share is decoded once.
    seen: HashMap<(u32, u16), u32>,
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

    /// The first scratch frame of a block. Scratch begins at frame `first`.
    fn add(
        &mut self,
        input: &StepInput,
        scratch: Scratch,
        first: u32,
        (position, frames): (u16, &[u32]),
    ) -> u32 {
        let next = self.jobs.len() as u32;
        let at = *self.seen.entry((frames[0], position)).or_insert(next);
        let target = first + at * SUB_BLOCKS as u32 * scratch.slots;
        if at == next {
            let shrink = input
                .shrinks
                .iter()
                .position(|s| s.to == position && input.frames[s.target as usize] == frames[0]);
            let shrink = shrink.map_or(NONE, |s| s as u32);
            let source = self.sources.len() as u32;
            self.jobs.push([position.into(), source, target, shrink]);
            self.sources.extend_from_slice(frames);
        }
        target
    }

    /// Plans a step that lists its blocks: the same with scratch frames in place of shrunk blocks; none if it names no such block.
    pub(super) fn listed(
        &mut self,
        layout: &KvLayout,
        scratch: Scratch,
        first: u32,
        input: &StepInput,
    ) -> Result<Option<StepInput>, CudaError> {
        self.clear();
        if input.blocks.iter().all(|b| b.schedule_position == 0) {
            return Ok(None);
        }
        let mut frames = Vec::new();
        let mut blocks = Vec::with_capacity(input.blocks.len());
        for block in &input.blocks {
            let named = &input.frames[block.first_frame as usize..][..block.frames as usize];
            let first_frame = frames.len() as u32;
            if block.schedule_position == 0 {
                frames.extend_from_slice(named);
            } else {
                let target = self.add(input, scratch, first, (block.schedule_position, named));
                frames.extend(Self::scratch_frames(layout, scratch, target));
            }
            blocks.push(BlockRef {
                schedule_position: 0,
                first_frame,
                frames: frames.len() as u32 - first_frame,
            });
        }
        self.check(scratch)?;
        Ok(Some(StepInput {
            blocks,
            frames,
            copies: Vec::new(),
            shrinks: Vec::new(),
            ..input.clone()
        }))
    }

    /// Plans a step over kept tables, which from then on have the kernels read its shrunk blocks in scratch frames.
    pub(super) fn kept(
        &mut self,
        layout: &KvLayout,
        scratch: Scratch,
        first: u32,
        input: &StepInput,
        (known, tables): (&KeptTables, &mut DeviceTables),
    ) -> Result<(), CudaError> {
        self.clear();
        for (id, position, frames) in known.read(input).filter(|b| b.1 > 0) {
            let target = self.add(input, scratch, first, (position, frames));
            tables.redirect(id, Self::scratch_frames(layout, scratch, target));
        }
        self.check(scratch)
    }

    fn clear(&mut self) {
        self.jobs.clear();
        self.sources.clear();
        self.seen.clear();
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
