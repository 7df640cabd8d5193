//! Shrinks blocks: every record read in its present format and written in its next one.

use parking_lot::Mutex;

use super::threads::{Pool, TaskPanic};
use crate::SUB_BLOCKS;
use crate::backend::{BlockTables, Shrink, ShrinkFailure, StepInput};
use crate::formats::{FormatError, RecordShape};
use crate::kv::{KvArena, KvLayout, RecordPlace, Side};

/// Runs the shrinks of a checked step, a record a task. Returns those that failed, in order, each
/// with its first page; their blocks are as they were.
pub(super) fn run(
    pool: &mut Pool,
    arena: &mut KvArena,
    layout: &KvLayout,
    input: &StepInput,
) -> Result<Vec<ShrinkFailure>, TaskPanic> {
    let geometry = layout.geometry();
    let records = geometry.records();
    let failures = Mutex::new(Vec::new());
    let arena: &KvArena = arena;
    pool.run(input.shrinks.len() * records, |task, _| {
        let (index, record) = (task / records, task % records);
        let shrink = input.shrinks[index];
        let (layer, side, kv_head) = geometry.of_record(record);
        if geometry.windowed.contains(layer) && shrink.is_trimmed(layout, input) {
            return;
        }
        let job = Record {
            arena,
            layout,
            input,
            shrink,
            record,
            layer,
            side,
        };
        if let Err(error) = job.run() {
            let failure = ShrinkFailure {
                shrink: index,
                layer,
                side,
                kv_head,
                error,
            };
            failures.lock().push((record, failure));
        }
    })?;
    let mut failures = failures.into_inner();
    failures.sort_by_key(|(record, failure)| (failure.shrink, *record));
    failures.dedup_by_key(|(_, failure)| failure.shrink);
    Ok(failures.into_iter().map(|(_, failure)| failure).collect())
}

/// A block that names the frames of a failed shrink, and where it stands by the tables.
pub(super) struct TakenBack {
    block: u32,
    level: u16,
    frames: Vec<u32>,
}

/// For the rows of a step some of whose shrinks failed: blocks that name their new frames name the
/// old ones again, until [`restore`].
pub(super) fn take_back(
    tables: &mut BlockTables,
    input: &StepInput,
    layout: &KvLayout,
    failures: &[ShrinkFailure],
) -> Vec<TakenBack> {
    let mut taken_back = Vec::new();
    for failure in failures {
        let shrink = input.shrinks[failure.shrink];
        let (source, target) = shrink.frames(layout, input);
        for seq in &input.seqs {
            let named = |id: &&u32| {
                let (level, frames) = tables.block(**id);
                level == shrink.to && frames.first() == target.first()
            };
            let found = tables.blocks_of(seq).iter().find(named).copied();
            if let Some(block) = found {
                tables.put_block(block, shrink.from, source);
                taken_back.push(TakenBack {
                    block,
                    level: shrink.to,
                    frames: target.to_vec(),
                });
            }
        }
    }
    taken_back
}

/// The tables as the deltas made them.
pub(super) fn restore(tables: &mut BlockTables, taken_back: &[TakenBack]) {
    for TakenBack {
        block,
        level,
        frames,
    } in taken_back
    {
        tables.put_block(*block, *level, frames);
    }
}

/// One record of one shrink.
struct Record<'a> {
    arena: &'a KvArena,
    layout: &'a KvLayout,
    input: &'a StepInput,
    shrink: Shrink,
    record: usize,
    layer: usize,
    side: Side,
}

impl Record<'_> {
    fn run(&self) -> Result<(), FormatError> {
        let (layer, side) = (self.layer, self.side);
        let format = |level| self.layout.format(level, layer, side);
        let (from, to) = (format(self.shrink.from), format(self.shrink.to));
        let shape = RecordShape {
            side,
            head_dim: self.layout.geometry().head_dim,
        };
        let (old, new) = self.shrink.frames(self.layout, self.input);
        let mut gathered = Vec::new();
        let source = if self.shrink.from == 0 {
            gathered = self.gather();
            &gathered[..]
        } else {
            let (place, bytes) = self.place(self.shrink.from);
            // SAFETY: in this step nothing writes the frames that a shrink reads.
            unsafe { self.arena.record(old, place, bytes, &mut gathered) }
        };
        let (place, bytes) = self.place(self.shrink.to);
        let mut shrunk;
        let record = if from == to {
            source
        } else {
            shrunk = vec![0; bytes];
            from.shrink(to, shape, source, &mut shrunk)?;
            &shrunk[..]
        };
        // SAFETY: the step holds the arena mutably. Records do not overlap, target frames belong to
        // one shrink, and one task has this record.
        unsafe { self.arena.write_record(new, place, record) };
        Ok(())
    }

    /// The 16-bit rows `[128][head_dim]`, from the block's eight sub-blocks.
    fn gather(&self) -> Vec<u8> {
        let (geometry, frame) = (self.layout.geometry(), self.layout.frame());
        let place = geometry.sub_record_place(frame, self.record);
        let bytes = geometry.sub_record_bytes();
        let (source, _) = self.shrink.frames(self.layout, self.input);
        let mut rows = Vec::with_capacity(SUB_BLOCKS * bytes);
        for sub_block in 0..SUB_BLOCKS {
            let id = source[sub_block * frame.frames_per_sub_block + place.frame];
            let start = self.arena.frame_ptr(id).wrapping_add(place.offset);
            // SAFETY: a sub-record inside a frame of the arena; in this step nothing writes the
            // frames that a shrink reads.
            rows.extend_from_slice(unsafe {
                std::slice::from_raw_parts(start.cast_const(), bytes)
            });
        }
        rows
    }

    /// Place and bytes of the record at a level ≥ 1.
    fn place(&self, level: u16) -> (RecordPlace, usize) {
        let bytes = self.layout.record_bytes(level, self.layer, self.side);
        (self.layout.place(level, self.record), bytes)
    }
}
