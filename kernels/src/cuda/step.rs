//! What a step's kernels read besides weights and pages: one packed upload per step at fixed
//! addresses, and the tables.
//!
//! The addresses do not change from step to step, so recorded graphs stay valid; only the contents
//! and the counts do.

use std::ops::Range;
use std::sync::Arc;

use super::arena::DeviceArena;
use super::attention::{Attention, DecodeWork, unit_columns};
use super::driver::{Device, DeviceBuffer, Pinned, Stream};
use super::error::CudaError;
use super::params::DevicePtr;
use super::plan::{
    AttentionPlan, DecodeRule, DecodeUnit, InScratch, SplitRule, Spread, UnitColumns, Windows,
    prefill_tiles_max,
};
use super::recurrence::{RecurrencePlan, RecurrenceStep, chunked_seqs_max, chunks_max};
use super::tables::{DeviceTables, ScratchShape};
use crate::backend::{StepInput, TableShape};
use crate::kv::{KvGeometry, KvLayout};

#[cfg(test)]
mod host_time;
#[cfg(test)]
mod room;

/// The largest step a backend is prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCapacity {
    /// Rows (tokens) of a step.
    pub rows: usize,
    /// Sequences of a step, and rows of the block table.
    pub seqs: usize,
    /// Blocks of all sequences of a step; a shared block counts once for each that names it. Each
    /// row of the block table has an equal share.
    pub blocks: usize,
}

impl StepCapacity {
    /// The block tables of a backend with a pool of `frames` frames.
    pub fn tables(&self, layout: &KvLayout, frames: u32) -> TableShape {
        let each = self.blocks / self.seqs.max(1);
        TableShape::new(self.seqs, each, layout, frames)
    }
}

/// `PageTable` of the CUDA source.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct PageTable {
    arena: DevicePtr,
    blocks: DevicePtr,
    frames: DevicePtr,
    frame_bytes: u64,
    frames_per_sub_block: u32,
    records_per_frame: u32,
}
const _: () = assert!(size_of::<PageTable>() == 40);

/// Word ranges of the packed upload. Units and tiles are read 16 bytes at a time, so every section
/// starts at a multiple of 8 words.
#[derive(Debug)]
struct Sections {
    counts: Range<usize>,
    tokens: Range<usize>,
    positions: Range<usize>,
    first_blocks: Range<usize>,
    logit_rows: Range<usize>,
    /// Of [`RecurrencePlan`].
    seqs: Range<usize>,
    chunks: Range<usize>,
    chunked: Range<usize>,
    tiles: Range<usize>,
    /// Of each decode plan, the first one last: the upload ends with what there is of its units.
    decode: Vec<DecodeSections>,
}

/// Of a decode plan.
#[derive(Debug, Clone, Default)]
struct DecodeSections {
    rows: Range<usize>,
    units: Range<usize>,
}

/// Where a decode plan is on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodePlace {
    pub(super) units: DevicePtr,
    pub(super) unit_count: DevicePtr,
    /// Units there is room for.
    pub(super) room: usize,
    pub(super) rows: DevicePtr,
    pub(super) row_count: DevicePtr,
}

/// Counts before those of decode plans: rows, sequences, and those that recurrent layers walk.
const DECODE_COUNTS: usize = 3;

/// Words of 4 bytes.
const UNIT_WORDS: usize = size_of::<DecodeUnit>() / size_of::<u32>();

impl Sections {
    /// `rooms`: units of each decode plan, at most.
    fn new(capacity: &StepCapacity, columns: UnitColumns, rooms: &[usize]) -> Self {
        let group = columns.group;
        let mut decode = vec![DecodeSections::default(); rooms.len()];
        let mut end = 0;
        let mut section = |words: usize| {
            let start = end;
            end += words.next_multiple_of(8);
            start..start + words
        };
        let mut this = Self {
            counts: section(DECODE_COUNTS + 2 * rooms.len()),
            tokens: section(capacity.rows),
            positions: section(capacity.rows),
            first_blocks: section(capacity.rows),
            logit_rows: section(capacity.rows),
            seqs: section(4 * capacity.seqs),
            chunks: section(4 * chunks_max(capacity.rows, capacity.seqs)),
            chunked: section(4 * chunked_seqs_max(capacity.rows, capacity.seqs)),
            tiles: section(4 * prefill_tiles_max(capacity.seqs, capacity.rows, group)),
            decode: Vec::new(),
        };
        for (plan, room) in decode.iter_mut().zip(rooms).rev() {
            plan.rows = section(4 * capacity.seqs * columns.rows);
            plan.units = section(UNIT_WORDS * room);
        }
        this.decode = decode;
        this
    }

    /// Words that a step takes at most.
    fn end(&self) -> usize {
        self.decode[0].units.end
    }
}

/// The packed inputs of a step, on both sides.
#[derive(Debug)]
pub struct StepBuffers {
    capacity: StepCapacity,
    columns: UnitColumns,
    sections: Sections,
    /// Written by turns: the device may still read the one while the other is written.
    hosts: [Pinned<u32>; 2],
    turn: usize,
    device: DeviceBuffer<u32>,
    pub(super) tables: DeviceTables,
    pub(super) plan: AttentionPlan,
    recurrence: RecurrencePlan,
    windows: Windows,
    /// The plan's, of steps that read no shrunk blocks.
    pub(super) rule: SplitRule,
    /// Units of one KV head that a step has under way at once.
    pub(super) spread: Spread,
    /// The plan's, of those that may.
    pub(super) mixed_rule: SplitRule,
    /// Rows of the loaded step.
    pub(super) rows: usize,
    asked: Vec<bool>,
}

impl StepBuffers {
    /// Allocates for steps up to `capacity` over block tables of the shape, with room for so many
    /// blocks in scratch. Plans for the kernels of `attention`.
    pub(super) fn new(
        device: &Arc<Device>,
        capacity: StepCapacity,
        (tables, scratch): (TableShape, ScratchShape),
        rule: SplitRule,
        attention: &Attention,
    ) -> Result<Self, CudaError> {
        let columns = attention.columns();
        let windows = attention.windows().clone();
        let rooms: Vec<_> = (0..windows.len()).map(|p| attention.room(p)).collect();
        let sections = Sections::new(&capacity, columns, &rooms);
        let words = sections.end();
        Ok(Self {
            capacity,
            tables: DeviceTables::new(device, tables, scratch)?,
            columns,
            sections,
            hosts: [Pinned::new(device, words)?, Pinned::new(device, words)?],
            turn: 0,
            device: DeviceBuffer::filled(device, words, 0, "the inputs of a step")?,
            plan: AttentionPlan::new(
                &windows,
                attention.prefill_variant().tile_rows(),
                tables.row_blocks as u32,
            ),
            recurrence: RecurrencePlan::default(),
            windows,
            rule,
            spread: Spread::default(),
            mixed_rule: SplitRule::MIXED,
            rows: 0,
            asked: Vec::new(),
        })
    }

    /// What it was made for.
    pub fn capacity(&self) -> StepCapacity {
        self.capacity
    }

    /// Bytes that `new` allocates on the device.
    pub(super) fn bytes(
        capacity: &StepCapacity,
        tables: &TableShape,
        (geometry, q_heads): (KvGeometry, usize),
        windows: &Windows,
    ) -> usize {
        let columns = unit_columns(geometry, q_heads, 1);
        let size = (capacity.seqs, capacity.blocks);
        let room = |plan| windows.room(plan, SplitRule::default(), size, columns);
        let rooms: Vec<_> = (0..windows.len()).map(room).collect();
        let sections = Sections::new(capacity, columns, &rooms);
        sections.end() * size_of::<u32>() + DeviceTables::bytes(tables)
    }

    /// Plans the attention of a checked step and enqueues changes of the tables and the upload,
    /// with rows up to `padded` made harmless: they embed token 0 at position 0 and are read by
    /// nobody. `logit_rows` are the rows whose logits are computed, each once. `mixed`: its
    /// decoding sequences may read shrunk blocks; `in_scratch`: which sequences read scratch. The
    /// stream must have finished with the step before the previous one.
    pub(super) fn load(
        &mut self,
        stream: &Stream,
        input: &StepInput,
        logit_rows: &[u32],
        padded: usize,
        (mixed, in_scratch): (bool, &[Option<InScratch>]),
    ) -> Result<(), CudaError> {
        let c = &self.capacity;
        for (what, have, most) in [
            ("rows", padded, c.rows),
            ("sequences", input.seqs.len(), c.seqs),
        ] {
            if have > most {
                return Err(CudaError::Unsupported(format!(
                    "a step of {have} {what}, but this backend was started for {most}"
                )));
            }
        }
        // Ahead of the upload: what reads the tables waits for that.
        self.tables.flush(stream)?;
        let decoding = input.seqs.iter().filter(|seq| seq.rows == 1).count();
        self.plan.rule = self.decode_rule(mixed, decoding);
        self.plan.others_spread = self.decode_rule(mixed, padded).spread;
        self.plan.plan(&input.seqs, self.columns.group, in_scratch);
        let chunked_max = chunked_seqs_max(c.rows, c.seqs);
        self.recurrence.plan(&input.seqs, chunked_max);
        self.rows = input.tokens.len();
        let s = &self.sections;
        self.turn ^= 1;
        let host = &mut *self.hosts[self.turn];
        let mut put = |section: &Range<usize>, words: &[u32]| {
            host[section.start..section.start + words.len()].copy_from_slice(words)
        };
        let counts = [self.rows, input.seqs.len(), self.recurrence.walked];
        put(&s.counts, &counts.map(|n| n as u32));
        put(&s.seqs, self.recurrence.seqs.as_flattened());
        put(&s.chunks, self.recurrence.chunks.as_flattened());
        put(&s.chunked, self.recurrence.chunked.as_flattened());
        put(&s.tokens, &input.tokens);
        put(&s.logit_rows, logit_rows);
        put(&s.tiles, bytemuck::cast_slice(&self.plan.tiles));
        for (index, (plan, sections)) in self.plan.decode.iter().zip(&s.decode).enumerate() {
            let counts = [plan.units.len(), plan.rows.len()].map(|n| n as u32);
            let at = s.counts.start + DECODE_COUNTS + 2 * index;
            put(&(at..s.counts.end), &counts);
            put(&sections.rows, bytemuck::cast_slice(&plan.rows));
            put(&sections.units, bytemuck::cast_slice(&plan.units));
        }
        for seq in &input.seqs {
            for i in 0..seq.rows {
                let row = (seq.first_row + i) as usize;
                host[s.positions.start + row] = seq.position + i;
                host[s.first_blocks.start + row] = self.plan.first_block(seq);
            }
        }
        for section in [&s.tokens, &s.positions, &s.first_blocks] {
            host[section.start + self.rows..section.start + padded].fill(0);
        }
        let used = s.decode[0].units.start + UNIT_WORDS * self.plan.decode[0].units.len();
        self.pad_logit_rows(logit_rows, padded);
        // SAFETY: this buffer of the host is written again when the stream has finished with the
        // step, and both live as long as `self`, whose owner waits for the stream before it drops
        // them.
        unsafe { stream.upload(&mut self.device, 0, &self.hosts[self.turn], used) }
    }

    fn decode_rule(&self, mixed: bool, seqs: usize) -> DecodeRule {
        DecodeRule {
            rule: if mixed { self.mixed_rule } else { self.rule },
            spread: match mixed {
                true => Spread::default(),
                false => self.spread.among(seqs),
            },
            columns: mixed.then_some(self.columns),
        }
    }

    /// What a decode plan asks of its kernels, where that is `work` in the first one. In others it
    /// follows from the most that rows see, so that it need not be known to replay a step.
    pub(super) fn work_of(&self, plan: usize, work: DecodeWork, at_once: usize) -> DecodeWork {
        let seen = self.windows.blocks(plan, self.columns.rows);
        let Some(blocks) = seen.filter(|_| plan > 0) else {
            return work;
        };
        let DecodeRule { rule, spread, .. } = self.decode_rule(work.mixed, work.seqs);
        let (large, small, _) = rule.cut_to_spread(blocks, spread);
        let cut = large + small > 1;
        DecodeWork {
            cut,
            at_once: cut && !work.mixed && work.seqs * (large + small) <= at_once,
            ..work
        }
    }

    /// A recorded step computes the logits of as many rows as it has: those not asked for come
    /// after. Each row stands once, for the last norm adds to its residual.
    fn pad_logit_rows(&mut self, logit_rows: &[u32], padded: usize) {
        self.asked.clear();
        self.asked.resize(padded, false);
        for &row in logit_rows {
            self.asked[row as usize] = true;
        }
        let first = self.sections.logit_rows.start + logit_rows.len();
        let others = (0..padded as u32).filter(|row| !self.asked[*row as usize]);
        let host = &mut self.hosts[self.turn][first..];
        host.iter_mut().zip(others).for_each(|(to, row)| *to = row);
    }

    pub(super) fn page_table(&self, arena: &DeviceArena) -> PageTable {
        PageTable {
            arena: arena.ptr(),
            blocks: self.tables.entries(),
            frames: self.tables.frames(),
            frame_bytes: arena.layout().frame_bytes as u64,
            frames_per_sub_block: arena.layout().frames_per_sub_block as u32,
            records_per_frame: arena.records_per_frame(),
        }
    }

    pub(super) fn block_levels(&self) -> DevicePtr {
        self.tables.levels()
    }

    pub(super) fn row_count(&self) -> DevicePtr {
        self.device.at(self.sections.counts.start)
    }

    /// What recurrent layers take, of `seqs` sequences, those of a recorded step included that are
    /// not there.
    pub(super) fn recurrence(&self, seqs: usize) -> RecurrenceStep {
        let (s, plan) = (&self.sections, &self.recurrence);
        RecurrenceStep {
            seqs: self.device.at(s.seqs.start),
            chunks: self.device.at(s.chunks.start),
            chunked: self.device.at(s.chunked.start),
            seq_count: self.device.at(s.counts.start + 1),
            walked_count: self.device.at(s.counts.start + 2),
            walked: seqs - plan.chunked.len(),
            chunked_seqs: plan.chunked.len(),
            chunk_count: plan.chunks.len(),
        }
    }

    pub(super) fn tokens(&self) -> DevicePtr {
        self.device.at(self.sections.tokens.start)
    }

    pub(super) fn positions(&self) -> DevicePtr {
        self.device.at(self.sections.positions.start)
    }

    pub(super) fn first_blocks(&self) -> DevicePtr {
        self.device.at(self.sections.first_blocks.start)
    }

    pub(super) fn logit_rows(&self) -> DevicePtr {
        self.device.at(self.sections.logit_rows.start)
    }

    /// A decode plan.
    pub(super) fn decode(&self, plan: usize) -> DecodePlace {
        let sections = &self.sections.decode[plan];
        let counts = self.sections.counts.start + DECODE_COUNTS + 2 * plan;
        DecodePlace {
            units: self.device.at(sections.units.start),
            unit_count: self.device.at(counts),
            room: sections.units.len() / UNIT_WORDS,
            rows: self.device.at(sections.rows.start),
            row_count: self.device.at(counts + 1),
        }
    }

    /// The tiles of a turn.
    pub(super) fn tiles(&self, turn: usize) -> DevicePtr {
        let first = self.plan.turns[turn].start;
        self.device.at(self.sections.tiles.start + 4 * first)
    }
}
