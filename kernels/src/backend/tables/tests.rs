//! Tables and checks of steps against naive ones.

use std::collections::BTreeMap;

use super::*;
use crate::backend::{StepInput, StepLimits};
use crate::formats::FormatId as F;
use crate::kv::KvLayout;
use crate::kv::{FrameLayout, KvGeometry};
use TableDelta as D;

/// Two frames a sub-block; 16, 10 and 4 frames a block.
fn layout() -> KvLayout {
    let geometry = KvGeometry {
        layers: 2,
        kv_heads: 16,
        head_dim: 16,
        windowed: crate::kv::WindowedLayers::NONE,
    };
    let frame = FrameLayout {
        frame_bytes: 16_384,
        frames_per_sub_block: 2,
    };
    let shrunk = [vec![F::Int8; 4], vec![F::Int2; 4]];
    KvLayout::new(geometry, frame, &shrunk).unwrap()
}

const FRAMES: u32 = 400;
const SHAPE: TableShape = TableShape {
    slots: 4,
    row_blocks: 5,
    blocks: 12,
    block_frames: 16,
};

fn limits(layout: &KvLayout) -> StepLimits<'_> {
    StepLimits {
        vocab: 10,
        layout,
        pool_frames: FRAMES,
        samples_before: None,
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.0 >> 33) as usize % end) as u32
    }
}

/// Block `block` with `count` frames from `first` on.
fn block(block: u32, level: u16, first: u32, count: u32) -> Vec<D> {
    let frames = (0..count).map(|index| D::Frame {
        block,
        index,
        frame: first + index,
    });
    [D::Block { block, level }]
        .into_iter()
        .chain(frames)
        .collect()
}

fn row(slot: u32, index: u32, block: u32) -> D {
    D::Row { slot, index, block }
}

/// Of no slot yet.
fn seq(first_row: u32, rows: u32, position: u32) -> SeqRows {
    SeqRows {
        slot: 0,
        first_row,
        rows,
        position,
    }
}

fn step(seqs: &[(u32, SeqRows)]) -> StepInput {
    StepInput {
        tokens: vec![1; seqs.iter().map(|s| s.1.rows as usize).sum()],
        seqs: seqs
            .iter()
            .map(|&(slot, s)| SeqRows { slot, ..s })
            .collect(),
        ..StepInput::default()
    }
}

/// Slot 0: 130 tokens known, blocks 0 and 1; slot 2: block 0 and block 2 that has room for 32
/// tokens.
fn tables(layout: &KvLayout) -> BlockTables {
    let mut tables = BlockTables::new(SHAPE, FRAMES);
    let mut deltas = block(0, 0, 0, 16);
    deltas.extend(block(1, 0, 16, 2));
    deltas.extend(block(2, 0, 18, 4));
    deltas.extend([row(0, 0, 0), row(0, 1, 1), row(2, 0, 0), row(2, 1, 2)]);
    tables.apply(layout, &deltas, |_| ()).unwrap();
    tables
}

fn check(deltas: &[D], seqs: &[(u32, SeqRows)]) -> Result<(), E> {
    let layout = layout();
    let mut tables = tables(&layout);
    tables.apply(&layout, deltas, |_| ())?;
    limits(&layout).check(&step(seqs), &mut tables)
}

#[test]
fn sound_steps_pass() {
    assert_eq!(
        check(&[], &[(0, seq(0, 3, 130)), (2, seq(3, 2, 128))]),
        Ok(())
    );
    assert_eq!(check(&[], &[(2, seq(0, 32, 128))]), Ok(()));
    assert_eq!(check(&[], &[]), Ok(()));
}

#[test]
fn steps_that_contradict_the_tables_are_refused() {
    let capacity = |seq, tokens, capacity| {
        Err(E::Capacity {
            seq,
            tokens,
            capacity,
        })
    };
    assert_eq!(check(&[], &[(0, seq(0, 1, 144))]), capacity(0, 145, 144));
    assert_eq!(check(&[], &[(2, seq(0, 33, 128))]), capacity(0, 161, 160));
    assert_eq!(check(&[], &[(1, seq(0, 1, 0))]), capacity(0, 1, 0));
    let slots = 4;
    let slot = Err(E::Slot {
        seq: 0,
        slot: 4,
        slots,
    });
    assert_eq!(check(&[], &[(4, seq(0, 1, 0))]), slot);
    // Both write to the block they share.
    let aliased = check(&[], &[(0, seq(0, 1, 100)), (2, seq(1, 1, 100))]);
    let frame = 12;
    assert_eq!(
        aliased,
        Err(E::Aliased {
            seq: 1,
            frame,
            other: 0
        })
    );
    // One writes to it twice.
    let aliased = check(&[row(0, 1, 0)], &[(0, seq(0, 40, 100))]);
    assert!(matches!(aliased, Err(E::Aliased { seq: 0, .. })));
    // A frame that has been given to another block since.
    let stolen = check(&block(5, 0, 16, 2), &[(0, seq(0, 1, 130))]);
    assert!(matches!(
        stolen,
        Err(E::Aliased {
            seq: 0,
            frame: 16,
            ..
        })
    ));
    let sealed = check(&block(0, 1, 100, 10), &[(0, seq(0, 1, 100))]);
    assert_eq!(sealed, Err(E::Sealed { seq: 0, block: 0 }));
    assert_eq!(check(&block(0, 1, 100, 10), &[(0, seq(0, 1, 130))]), Ok(()));
    // Begun anew and not filled.
    let half = check(&block(0, 1, 100, 9), &[(0, seq(0, 1, 130))]);
    assert_eq!(half, capacity(0, 131, 0));
}

#[test]
fn a_block_that_loses_its_frames_behind_a_checked_step_is_not_written() {
    let layout = layout();
    let mut tables = tables(&layout);
    let one = step(&[(0, seq(0, 1, 120))]);
    let limits = limits(&layout);
    limits.check(&one, &mut tables).unwrap();
    limits.check(&one, &mut tables).unwrap();
    tables.apply(&layout, &block(0, 0, 0, 14), |_| ()).unwrap();
    let short = limits.check(&one, &mut tables);
    assert!(
        matches!(short, Err(E::Capacity { capacity: 112, .. })),
        "{short:?}"
    );
}

#[test]
fn a_block_behind_a_window_lacks_what_layers_with_one_use() {
    // The first of two layers has no window: the second frame of each sub-block is windowed.
    let mut geometry = layout().geometry();
    geometry.windowed = crate::kv::WindowedLayers::of([None, Some(100)].into_iter());
    let shrunk = [vec![F::Int8; 4]];
    let layout = KvLayout::new(geometry, layout().frame(), &shrunk).unwrap();
    assert_eq!((layout.kept_frames(0), layout.frames(0)), (8, 16));
    let frame = |index, frame| D::Frame {
        block: 0,
        index,
        frame,
    };
    let mut tables = BlockTables::new(SHAPE, FRAMES);
    let mut applied = Vec::new();
    let deltas = [
        D::Block { block: 0, level: 0 },
        frame(0, 7),
        frame(1, NO_FRAME),
        frame(2, NO_FRAME),
    ];
    let result = tables.apply(&layout, &deltas, |delta| applied.push(*delta));
    assert!(
        matches!(result, Err(E::Delta { delta: 3, .. })),
        "{result:?}"
    );
    // A device is told of frames that it may read.
    assert_eq!(applied[2], frame(1, 0));
    assert_eq!(tables.block(0), (0, &[7, 0][..]));
}

#[test]
fn wrong_deltas_are_left_out_and_the_others_applied() {
    let layout = layout();
    let frame = |block, index, frame| D::Frame {
        block,
        index,
        frame,
    };
    for wrong in [
        row(4, 0, 0),
        row(0, 5, 0),
        row(0, 3, 0),
        row(0, 0, 12),
        D::Block {
            block: 12,
            level: 0,
        },
        D::Block { block: 0, level: 3 },
        frame(12, 0, 0),
        frame(1, 3, 0),
        frame(0, 16, 0),
        frame(0, 0, FRAMES),
        frame(1, 2, FRAMES),
        row(u32::MAX, u32::MAX, u32::MAX),
        frame(u32::MAX, u32::MAX, u32::MAX),
    ] {
        let mut known = tables(&layout);
        let deltas = [row(1, 0, 2), wrong, wrong, row(1, 1, 1)];
        let mut applied = Vec::new();
        let result = known.apply(&layout, &deltas, |d| applied.push(*d));
        assert!(
            matches!(result, Err(E::Delta { delta: 1, .. })),
            "{wrong:?}"
        );
        assert_eq!(applied, [deltas[0], deltas[3]]);
        let mut expected = tables(&layout);
        expected.apply(&layout, &applied, |_| ()).unwrap();
        assert_eq!(format!("{known:?}"), format!("{expected:?}"));
    }
}

/// Tables as maps, without any limit.
#[derive(Default)]
struct Naive {
    rows: BTreeMap<u32, BTreeMap<u32, u32>>,
    blocks: BTreeMap<u32, (u16, BTreeMap<u32, u32>)>,
    /// Where each frame was last named.
    places: BTreeMap<u32, (u32, u32)>,
}

impl Naive {
    fn apply(&mut self, delta: &D) {
        match *delta {
            D::Row { slot, index, block } => {
                self.rows.entry(slot).or_default().insert(index, block);
            }
            D::Block { block, level } => {
                self.blocks.insert(block, (level, BTreeMap::new()));
            }
            D::Frame {
                block,
                index,
                frame,
            } => {
                self.blocks.entry(block).or_default().1.insert(index, frame);
                self.places.insert(frame, (block, index));
            }
        }
    }

    /// Level and frames of the blocks that hold `tokens` tokens of a row.
    fn blocks(&self, slot: u32, tokens: u32) -> Vec<(u16, Vec<u32>)> {
        let row = self.rows.get(&slot).into_iter().flatten();
        let held = row.take(tokens.div_ceil(128) as usize);
        held.map(|(_, id)| {
            let (level, frames) = self.blocks.get(id).cloned().unwrap_or_default();
            (level, frames.into_values().collect())
        })
        .collect()
    }

    /// Tokens that a row has memory for.
    fn capacity(&self, layout: &KvLayout, slot: u32) -> u32 {
        let mut tokens = 0;
        for (level, frames) in self.blocks(slot, u32::MAX) {
            let held = match level {
                0 => frames.len() as u32 / 2,
                _ if frames.len() as u32 == layout.frames(level) => 8,
                _ => 0,
            };
            tokens += 16 * held;
            if held < 8 {
                break;
            }
        }
        tokens
    }

    /// Whether these rows may be written.
    fn takes(&self, layout: &KvLayout, seqs: &[(u32, SeqRows)]) -> bool {
        let mut writers = BTreeMap::new();
        seqs.iter().enumerate().all(|(seq, (slot, s))| {
            let end = s.position + s.rows;
            let has_memory = end <= self.capacity(layout, *slot);
            has_memory
                && (s.position / 16..end.div_ceil(16)).all(|sub_block| {
                    let (index, sub_block) = (sub_block / 8, sub_block % 8);
                    let id = self.rows[slot][&index];
                    let (level, frames) = &self.blocks[&id];
                    let mut own = 2 * sub_block..2 * sub_block + 2;
                    *level == 0
                        && *writers.entry(id).or_insert((seq, index)) == (seq, index)
                        && own.all(|i| self.places[&frames[&i]] == (id, i))
                })
        })
    }
}

#[test]
fn random_deltas_and_steps_are_what_a_naive_model_makes_of_them() {
    let layout = layout();
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut known = BlockTables::new(SHAPE, FRAMES);
        let mut naive = Naive::default();
        for _ in 0..60 {
            let mut deltas = Vec::new();
            for _ in 0..rng.below(4) {
                let id = rng.below(SHAPE.blocks);
                let level = [0, 0, 0, 1, 2, 3][rng.below(6) as usize];
                let most = if level < 3 { layout.frames(level) } else { 2 };
                let count = [most, most, rng.below(20)][rng.below(3) as usize];
                // Mostly places of its own.
                let first = [id * 32, id * 32, id * 32 + 16, rng.below(FRAMES as usize)];
                deltas.extend(block(id, level, first[rng.below(4) as usize], count));
            }
            for _ in 0..rng.below(5) {
                let (slot, index) = (rng.below(SHAPE.slots + 1), rng.below(4));
                deltas.push(row(slot, index, rng.below(SHAPE.blocks)));
            }
            let mut applied = 0;
            let result = known.apply(&layout, &deltas, |delta| {
                naive.apply(delta);
                applied += 1;
            });
            assert_eq!(result.is_ok(), applied == deltas.len());
            let mut next = 0;
            let seqs: Vec<_> = (0..1 + rng.below(3))
                .map(|_| {
                    let rows = 1 + rng.below(40);
                    next += rows;
                    (
                        rng.below(SHAPE.slots),
                        seq(next - rows, rows, rng.below(500)),
                    )
                })
                .collect();
            let input = step(&seqs);
            for s in &input.seqs {
                let blocks = known.blocks_of(s).iter().map(|id| known.block(*id));
                let blocks: Vec<_> = blocks.map(|(at, frames)| (at, frames.to_vec())).collect();
                assert_eq!(blocks, naive.blocks(s.slot, s.position + s.rows));
            }
            // What the quick check takes, a fresh one does, unless a block in the middle of a row
            // has changed: here they may.
            let quick = limits(&layout).check(&input, &mut known);
            known.rows.iter_mut().for_each(|row| row.full = 0);
            let fresh = limits(&layout).check(&input, &mut known);
            assert_eq!(fresh.is_ok(), naive.takes(&layout, &seqs), "{input:?}");
            if fresh.is_ok() {
                assert_eq!(quick, fresh, "{input:?}");
                accepted += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(accepted > 500 && refused > 500, "{accepted} and {refused}");
}

/// Sequences that grow, share, shrink and end, as a caller of a builder knows them.
#[test]
fn tables_are_what_a_builder_was_told() {
    let layout = layout();
    for seed in 0..100 {
        let mut rng = Rng(seed);
        let mut builder = TableBuilder::default();
        let shape = TableShape {
            blocks: SHAPE.slots * SHAPE.row_blocks,
            ..SHAPE
        };
        let mut known = BlockTables::new(shape, FRAMES);
        let mut seqs: Vec<Vec<(u16, Vec<u32>)>> = vec![Vec::new(); SHAPE.slots];
        for _ in 0..80 {
            let in_use: Vec<_> = seqs.iter().flatten().flat_map(|b| &b.1).collect();
            let free: Vec<u32> = (0..FRAMES).filter(|f| !in_use.contains(&f)).collect();
            // Twice as many as there are sequences may hold, in any order.
            let first = rng.below(free.len() - 32) as usize;
            let mut free = free[first..].iter().copied();
            let slot = rng.below(SHAPE.slots) as usize;
            let (len, parent) = (seqs[slot].len(), rng.below(SHAPE.slots) as usize);
            let open = seqs[slot].last_mut();
            match (rng.below(8), open) {
                (0, _) => {
                    seqs[slot].clear();
                    builder.clear_slot(slot as u32);
                    if rng.below(2) == 0 {
                        let full = seqs[parent]
                            .iter()
                            .take_while(|b| b.0 > 0 || b.1.len() == 16);
                        seqs[slot] = full.cloned().collect();
                    }
                }
                (1..3, Some(_)) => {
                    let index = rng.below(len) as usize;
                    let (level, frames) = &mut seqs[slot][index];
                    if frames.len() == 16 {
                        *level = 1 + rng.below(2) as u16;
                        *frames = free.by_ref().take(layout.frames(*level) as usize).collect();
                    }
                }
                (_, Some((0, frames))) if frames.len() < 16 => {
                    frames.extend(free.by_ref().take(2));
                }
                _ if len < SHAPE.row_blocks && rng.below(3) == 0 => {
                    let count = 2 + 2 * rng.below(8) as usize;
                    seqs[slot].push((0, free.by_ref().take(count).collect()));
                }
                _ => {}
            }
            for (index, (level, frames)) in seqs[slot].iter().enumerate() {
                builder.set(slot as u32, index, *level, frames);
            }
            let mut deltas = Vec::new();
            builder.take_deltas(&mut deltas);
            known.apply(&layout, &deltas, |_| ()).unwrap();
            for (slot, blocks) in (0..).zip(&seqs) {
                let row = &known.row(slot)[..blocks.len()];
                for (id, block) in row.iter().zip(blocks) {
                    let (level, frames) = known.block(*id);
                    assert_eq!((level, frames), (block.0, &block.1[..]), "seed {seed}");
                }
            }
            // What is said again is not told again.
            for (index, (level, frames)) in seqs[slot].iter().enumerate() {
                builder.set(slot as u32, index, *level, frames);
            }
            deltas.clear();
            builder.take_deltas(&mut deltas);
            assert_eq!(deltas, []);
        }
    }
}
