//! Tables in device memory against those of the host, on the emulator.

use super::*;
use crate::backend::BlockTables;
use crate::cuda::selftest::Rng;
use crate::kv::{KvGeometry, KvLayout};

const FRAMES: u32 = 3000;

fn layout() -> KvLayout {
    KvLayout::sixteen_bit(KvGeometry {
        layers: 2,
        kv_heads: 16,
        head_dim: 128,
        windowed: crate::kv::WindowedLayers::NONE,
    })
    .unwrap()
}

fn words(tables: &DeviceTables) -> Vec<u32> {
    let mut words = vec![0; tables.words.len()];
    tables.words.read(0, &mut words).unwrap();
    words
}

/// The frames of a sequence as the kernels find them (`sub_block_frame` of pages.cuh).
fn frames_of(
    words: &[u32],
    entries: usize,
    first_block: usize,
    frames: usize,
    each: usize,
) -> Vec<u32> {
    let frame = |i: usize| {
        let first = words[ENTRY_WORDS * (first_block + i / each)] as usize;
        words[ENTRY_WORDS * entries + first + i % each]
    };
    (0..frames).map(frame).collect()
}

#[test]
fn what_kernels_read_is_what_the_deltas_said() {
    let layout = layout();
    let device = Device::open(0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let each = layout.frames(0) as usize;
    let shape = TableShape {
        slots: 6,
        row_blocks: 4,
        blocks: 20,
        block_frames: each,
    };
    for seed in 1..20 {
        let mut rng = Rng(seed);
        let mut tables = DeviceTables::new(&device, shape, ScratchShape::default()).unwrap();
        let mut known = BlockTables::new(shape, FRAMES);
        for round in 0..60 {
            let mut deltas = Vec::new();
            // The same word may change many times, and back.
            for _ in 0..rng.below(4) {
                let block = rng.below(shape.blocks) as u32;
                deltas.push(TableDelta::Block { block, level: 0 });
                deltas.extend((0..each as u32).map(|index| TableDelta::Frame {
                    block,
                    index,
                    frame: rng.below(FRAMES as usize) as u32,
                }));
            }
            for slot in 0..shape.slots as u32 {
                let row = (0..rng.below(5) as u32).map(|index| TableDelta::Row {
                    slot,
                    index,
                    block: rng.below(shape.blocks) as u32,
                });
                deltas.extend(row);
            }
            known.apply(&layout, &deltas, |d| tables.apply(d)).unwrap();
            if rng.below(3) == 0 {
                continue; // A step that was refused: its deltas come with the next one.
            }
            tables.flush(&stream).unwrap();
            let words = words(&tables);
            assert_eq!(words, tables.mirror, "round {round}");
            assert!(tables.changed.is_empty() && !tables.is_changed.contains(&true));
            for slot in 0..shape.slots {
                let blocks = known.row(slot as u32).iter();
                // A block that has not been described yet has no frames; those behind it wait.
                let frames = blocks.map(|id| known.block(*id).1);
                let whole: Vec<u32> = frames
                    .take_while(|frames| frames.len() == each)
                    .flatten()
                    .copied()
                    .collect();
                let (first, count) = (slot * shape.row_blocks, whole.len());
                let read = frames_of(&words, tables.entries, first, count, each);
                assert_eq!(read, whole);
            }
        }
    }
}

#[test]
fn changes_are_made_however_many_there_are() {
    let layout = layout();
    let device = Device::open(0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let each = layout.frames(0) as usize;
    let shape = TableShape {
        slots: 1,
        row_blocks: 4,
        blocks: 3 * CHANGES_MAX / each,
        block_frames: each,
    };
    let mut tables = DeviceTables::new(&device, shape, ScratchShape::default()).unwrap();
    let row = |index, block| TableDelta::Row {
        slot: 0,
        index,
        block,
    };
    let frame = |block: usize, index: usize, frame| TableDelta::Frame {
        block: block as u32,
        index: index as u32,
        frame,
    };
    for (index, block) in [(0, 2), (1, 0), (2, 1)] {
        tables.apply(&row(index, block));
    }
    let mut frames: Vec<u32> = (1..=(shape.blocks * each) as u32).collect();
    for (place, &id) in frames.iter().enumerate() {
        tables.apply(&frame(place / each, place % each, id));
    }
    // Both words of two entries; block 0 is what the third was before, frames and all.
    assert_eq!(tables.changed.len(), 4 + frames.len());
    tables.flush(&stream).unwrap();
    let parts = |tables: &DeviceTables| {
        let mut words = words(tables);
        let mut frames = words.split_off(ENTRY_WORDS * shape.row_blocks);
        let levels = frames.split_off(shape.blocks * each);
        (words, frames, levels)
    };
    assert_eq!(parts(&tables).1, frames);
    for (place, id) in [(70, 7), (CHANGES_MAX, 9)] {
        frames[place] = id;
        tables.apply(&frame(place / each, place % each, id));
    }
    tables.apply(&row(1, 3));
    tables.apply(&TableDelta::Block { block: 1, level: 3 });
    assert_eq!(tables.changed.len(), 5);
    tables.flush(&stream).unwrap();
    let (entries, on_device, levels) = parts(&tables);
    let first = |block: u32| block * each as u32;
    assert_eq!(entries, [first(2), 2, first(3), 3, first(1), 1, 0, 0]);
    assert_eq!(on_device, frames);
    assert_eq!(levels[..4], [0, 3, 0, 0]);
}
