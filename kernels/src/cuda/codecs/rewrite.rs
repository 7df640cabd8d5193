//! The step as its kernels see it. Decode attention reads shrunk blocks as they are; sequences of
//! several rows, and where it cannot, read them in scratch frames, where each layer dequantises
//! them anew.
//!
//! Scratch holds the blocks of a few sequences. Where there are more of them, they take turns in
//! every layer: dequantised, read, and overwritten by the next ones.

use std::collections::HashMap;
use std::ops::Range;

use super::super::error::CudaError;
use super::super::plan::InScratch;
use super::super::step::StepCapacity;
use super::super::tables::{DeviceTables, ScratchShape};
use crate::SUB_BLOCKS;
use crate::backend::{BlockTables, StepInput};
use crate::kv::KvLayout;

#[cfg(all(test, feature = "cuda-emulator"))]
mod tests;

/// Words of a `ebb::DequantiseJob`: precision level, first frame of the source, first scratch
/// frame, shrink.
pub(super) const DEQUANTISE_WORDS: usize = 4;
/// In place of a shrink.
const NONE: u32 = u32::MAX;

/// Of so many frames of the pool one more is scratch, if that is more than the longest sequence
/// needs.
const POOL_SHARE: usize = 64;

/// Scratch frames behind those of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Scratch {
    /// Blocks there is room for.
    pub(super) blocks: usize,
    /// Frames of a sub-block: as many as the records of one layer, or of those that attention reads
    /// at once, ever touch. Slot `s` of a sub-block
    /// stands in scratch frame `s % slots`, so that no two slots of a layer share one.
    pub(super) slots: u32,
    /// What tables must have room for.
    pub(in crate::cuda) shape: ScratchShape,
}

impl Scratch {
    /// For a pool of `frames` frames: room for the longest sequence that a step within `capacity`
    /// can have if its sequences share its blocks evenly, and no more blocks than the pool holds.
    /// `at_once`: layers of the KV cache, one behind the other, that are read together.
    pub(in crate::cuda) fn of(
        layout: &KvLayout,
        frames: u32,
        capacity: &StepCapacity,
        at_once: usize,
    ) -> Self {
        let (geometry, frame) = (layout.geometry(), layout.frame());
        let per_frame = frame.frame_bytes / geometry.sub_record_bytes();
        let of_layer = 2 * geometry.kv_heads;
        let slots = (0..=geometry.layers - at_once)
            .map(|l| ((l + at_once) * of_layer - 1) / per_frame - l * of_layer / per_frame + 1)
            .max()
            .unwrap_or(1);
        let smallest = layout.level_frames().into_iter().skip(1).min();
        let held = smallest.map_or(0, |least| frames as usize / least.max(1) as usize);
        let longest = capacity.blocks.div_ceil(capacity.seqs.max(1));
        let share = frames as usize / POOL_SHARE / (SUB_BLOCKS * slots);
        let blocks = longest.max(share).min(capacity.blocks).min(held);
        Self {
            blocks,
            slots: slots as u32,
            shape: ScratchShape {
                entries: if blocks == 0 { 0 } else { capacity.blocks },
                blocks,
                block_frames: frame.frames_per_block(),
            },
        }
    }

    /// Frames it takes.
    pub(in crate::cuda) fn frames(self) -> u32 {
        (self.blocks * SUB_BLOCKS) as u32 * self.slots
    }

    /// The first frame of a block, if scratch begins at frame `first`.
    fn block(self, first: u32, index: u32) -> u32 {
        first + index * SUB_BLOCKS as u32 * self.slots
    }

    /// The frames of a block as those of a 16-bit block, if scratch begins at frame `first`.
    pub(super) fn block_frames(
        self,
        layout: &KvLayout,
        first: u32,
        index: u32,
    ) -> impl Iterator<Item = u32> {
        let per_sub_block = layout.frame().frames_per_sub_block as u32;
        let target = self.block(first, index);
        (0..SUB_BLOCKS as u32).flat_map(move |sub_block| {
            (0..per_sub_block).map(move |slot| target + sub_block * self.slots + slot % self.slots)
        })
    }
}

/// What decides which sequences are read in scratch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) scratch: Scratch,
    /// Frame where scratch begins.
    pub(super) first: u32,
    /// Whether decode attention reads shrunk blocks.
    pub(super) reads: bool,
}

/// A block of a sequence.
#[derive(Debug, Clone, Copy)]
struct Block<'a> {
    level: u16,
    frames: &'a [u32],
    /// Where the device's tables have its frames.
    at: u32,
}

impl Block<'_> {
    fn key(&self) -> (u32, u16) {
        (self.frames[0], self.level)
    }
}

/// The blocks to dequantise, and where the kernels find them.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    pub(super) jobs: Vec<[u32; DEQUANTISE_WORDS]>,
    /// The jobs of each turn.
    pub(super) turns: Vec<Range<usize>>,
    /// The frames of the blocks of all jobs.
    pub(super) sources: Vec<u32>,
    /// Of each sequence; those that need no scratch have none.
    pub(super) in_scratch: Vec<Option<InScratch>>,
    /// Whether decoding sequences read shrunk blocks as they are.
    pub(super) mixed: bool,
    /// Where in scratch blocks of this turn are, by first frame and level: one that several
    /// sequences share is dequantised once.
    places: HashMap<(u32, u16), u32>,
    /// Where the frames of a block begin in `sources`.
    listed: HashMap<(u32, u16), u32>,
    /// Shrinks of the step by the first frame that they write.
    targets: HashMap<u32, u32>,
}

impl Rewrite {
    /// Plans a checked step.
    pub(super) fn plan(
        &mut self,
        rule: Rule,
        input: &StepInput,
        (known, tables): (&BlockTables, &mut DeviceTables),
    ) -> Result<(), CudaError> {
        self.clear();
        tables.clear_scratch();
        if !known.has_shrunk() {
            return Ok(());
        }
        let firsts = input
            .shrinks
            .iter()
            .map(|s| input.shrink_frames[s.target as usize]);
        let named = firsts.zip(0..).filter(|(frame, _)| known.names(*frame));
        self.targets.extend(named);
        for seq in &input.seqs {
            let blocks = known.blocks_of(seq).iter().map(|&id| {
                let (level, frames) = known.block(id);
                let at = tables.block_frames(id);
                Block { level, frames, at }
            });
            let place = self.plan_seq(rule, seq.rows, tables, blocks)?;
            let place = place.map(|(turn, firsts)| InScratch {
                turn,
                first_block: tables.add_to_scratch(firsts.into_iter()),
            });
            self.in_scratch.push(place);
        }
        self.end_turn();
        Ok(())
    }

    /// When a sequence's shrunk blocks are in scratch, and where the tables have the frames of each
    /// of its blocks then. None if it has no shrunk blocks, or decode attention reads them as they
    /// are.
    fn plan_seq<'a>(
        &mut self,
        rule: Rule,
        rows: u32,
        tables: &DeviceTables,
        blocks: impl Iterator<Item = Block<'a>> + Clone,
    ) -> Result<Option<(u32, Vec<u32>)>, CudaError> {
        let decodes = rule.reads && rows == 1;
        if decodes && self.mixed && self.targets.is_empty() {
            return Ok(None);
        }
        let shrunk = || blocks.clone().filter(|b| b.level > 0);
        if shrunk().next().is_none() {
            return Ok(None);
        }
        // Of a shrink of this step it is not known whether it will fail: such a block is
        // dequantised from where it is found then.
        let is_target = |b: Block<'_>| self.targets.contains_key(&b.frames[0]);
        if decodes && (self.targets.is_empty() || !shrunk().any(is_target)) {
            self.mixed = true;
            return Ok(None);
        }
        let fresh = shrunk().filter(|b| !self.places.contains_key(&b.key()));
        if self.places.len() + fresh.count() > rule.scratch.blocks {
            let (all, most) = (shrunk().count(), rule.scratch.blocks);
            if all > most {
                return Err(CudaError::Unsupported(format!(
                    "a sequence of {all} shrunk blocks, but this backend was started for {most}"
                )));
            }
            self.end_turn();
        }
        let firsts = blocks.map(|block| match block.level {
            0 => block.at,
            _ => tables.scratch_frames(self.place(rule, block) as usize),
        });
        let firsts = firsts.collect();
        Ok(Some((self.turns.len() as u32, firsts)))
    }

    /// Where in scratch a block is in this turn.
    fn place(&mut self, rule: Rule, block: Block<'_>) -> u32 {
        let next = self.places.len() as u32;
        let place = *self.places.entry(block.key()).or_insert(next);
        if place == next {
            let end = self.sources.len() as u32;
            let source = *self.listed.entry(block.key()).or_insert(end);
            if source == end {
                self.sources.extend_from_slice(block.frames);
            }
            let shrink = self.targets.get(&block.frames[0]).copied().unwrap_or(NONE);
            let target = rule.scratch.block(rule.first, place);
            self.jobs.push([block.level.into(), source, target, shrink]);
        }
        place
    }

    fn end_turn(&mut self) {
        if !self.places.is_empty() {
            let first = self.turns.last().map_or(0, |turn| turn.end);
            self.turns.push(first..self.jobs.len());
            self.places.clear();
        }
    }

    fn clear(&mut self) {
        self.jobs.clear();
        self.turns.clear();
        self.sources.clear();
        self.in_scratch.clear();
        self.mixed = false;
        self.places.clear();
        self.listed.clear();
        self.targets.clear();
    }
}
