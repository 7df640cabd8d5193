//! Kept tables against a naive model of them, and checked steps against the check of their lists.

use std::collections::BTreeMap;

use super::*;
use crate::formats::FormatId as F;
use crate::kv::{FrameLayout, KvGeometry};
use TableDelta as D;

/// Two frames a sub-block; 16, 10 and 4 frames a block.
fn layout() -> KvLayout {
    let geometry = KvGeometry {
        layers: 2,
        kv_heads: 16,
        head_dim: 16,
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
        drawn: None,
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
fn block(block: u32, position: u16, first: u32, count: u32) -> Vec<D> {
    let frames = (0..count).map(|index| D::Frame {
        block,
        index,
        frame: first + index,
    });
    [D::Block { block, position }]
        .into_iter()
        .chain(frames)
        .collect()
}

fn row(slot: u32, index: u32, block: u32) -> D {
    D::Row { slot, index, block }
}

fn seq(first_row: u32, rows: u32, position: u32) -> SeqRows {
    SeqRows {
        first_row,
        rows,
        position,
        first_block: 0,
        blocks: 0,
    }
}

fn step(seqs: &[(u32, SeqRows)]) -> StepInput {
    StepInput {
        tokens: vec![1; seqs.iter().map(|s| s.1.rows as usize).sum()],
        slots: seqs.iter().map(|s| s.0).collect(),
        seqs: seqs.iter().map(|s| s.1).collect(),
        ..StepInput::default()
    }
}

/// Slot 0: 130 tokens known, blocks 0 and 1; slot 2: block 0 and block 2 that has room for 32
/// tokens.
fn tables(layout: &KvLayout) -> KeptTables {
    let mut tables = KeptTables::new(SHAPE, FRAMES);
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
    limits(&layout).check_kept(&step(seqs), &mut tables, &mut CheckScratch::default())
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
    let mut scratch = CheckScratch::default();
    let one = step(&[(0, seq(0, 1, 120))]);
    let limits = limits(&layout);
    limits.check_kept(&one, &mut tables, &mut scratch).unwrap();
    limits.check_kept(&one, &mut tables, &mut scratch).unwrap();
    tables.apply(&layout, &block(0, 0, 0, 14), |_| ()).unwrap();
    let short = limits.check_kept(&one, &mut tables, &mut scratch);
    assert!(
        matches!(short, Err(E::Capacity { capacity: 112, .. })),
        "{short:?}"
    );
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
            position: 0,
        },
        D::Block {
            block: 0,
            position: 3,
        },
        frame(12, 0, 0),
        frame(1, 3, 0),
        frame(0, 16, 0),
        frame(0, 0, FRAMES),
        frame(1, 2, FRAMES),
        row(u32::MAX, u32::MAX, u32::MAX),
        frame(u32::MAX, u32::MAX, u32::MAX),
    ] {
        let mut kept = tables(&layout);
        let deltas = [row(1, 0, 2), wrong, wrong, row(1, 1, 1)];
        let mut applied = Vec::new();
        let result = kept.apply(&layout, &deltas, |d| applied.push(*d));
        assert!(
            matches!(result, Err(E::Delta { delta: 1, .. })),
            "{wrong:?}"
        );
        assert_eq!(applied, [deltas[0], deltas[3]]);
        let mut expected = tables(&layout);
        expected.apply(&layout, &applied, |_| ()).unwrap();
        assert_eq!(format!("{kept:?}"), format!("{expected:?}"));
    }
}

#[test]
fn a_step_is_kept_or_listed() {
    let layout = layout();
    let limits = limits(&layout);
    let mut scratch = CheckScratch::default();
    let mut kept = step(&[(0, seq(0, 1, 130))]);
    assert_eq!(limits.check(&kept, &mut scratch), Err(E::KeepsNoTables));
    kept.slots.push(1);
    let checked = limits.check_kept(&kept, &mut tables(&layout), &mut scratch);
    assert_eq!(checked, Err(E::Slots { slots: 2, seqs: 1 }));
}

/// Tables as maps, without any limit.
#[derive(Default)]
struct Naive {
    rows: BTreeMap<u32, BTreeMap<u32, u32>>,
    blocks: BTreeMap<u32, (u16, BTreeMap<u32, u32>)>,
}

impl Naive {
    fn apply(&mut self, delta: &D) {
        match *delta {
            D::Row { slot, index, block } => {
                self.rows.entry(slot).or_default().insert(index, block);
            }
            D::Block { block, position } => {
                self.blocks.insert(block, (position, BTreeMap::new()));
            }
            D::Frame {
                block,
                index,
                frame,
            } => {
                self.blocks.entry(block).or_default().1.insert(index, frame);
            }
        }
    }

    /// Position and frames of the blocks that hold `tokens` tokens of a row.
    fn blocks(&self, slot: u32, tokens: u32) -> Vec<(u16, Vec<u32>)> {
        let row = self.rows.get(&slot).into_iter().flatten();
        let held = row.take(tokens.div_ceil(128) as usize);
        held.map(|(_, id)| {
            let (position, frames) = self.blocks.get(id).cloned().unwrap_or_default();
            (position, frames.into_values().collect())
        })
        .collect()
    }
}

#[test]
fn random_deltas_make_the_tables_of_a_naive_model() {
    let layout = layout();
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut kept = KeptTables::new(SHAPE, FRAMES);
        let mut naive = Naive::default();
        let mut scratch = CheckScratch::default();
        for _ in 0..60 {
            let mut deltas = Vec::new();
            for _ in 0..rng.below(4) {
                let id = rng.below(SHAPE.blocks);
                let position = [0, 0, 0, 1, 2, 3][rng.below(6) as usize];
                let most = if position < 3 {
                    layout.frames(position)
                } else {
                    2
                };
                let count = [most, most, rng.below(20)][rng.below(3) as usize];
                // Mostly places of its own.
                let first = [id * 32, id * 32, id * 32 + 16, rng.below(FRAMES as usize)];
                deltas.extend(block(id, position, first[rng.below(4) as usize], count));
            }
            for _ in 0..rng.below(5) {
                let (slot, index) = (rng.below(SHAPE.slots + 1), rng.below(4));
                deltas.push(row(slot, index, rng.below(SHAPE.blocks)));
            }
            let mut applied = 0;
            let result = kept.apply(&layout, &deltas, |delta| {
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
            let listed = kept.listed(&input);
            for ((slot, s), l) in seqs.iter().zip(&listed.seqs) {
                let blocks = &listed.blocks[l.first_block as usize..][..l.blocks as usize];
                let blocks: Vec<_> = blocks
                    .iter()
                    .map(|b| {
                        let frames = &listed.frames[b.first_frame as usize..][..b.frames as usize];
                        (b.schedule_position, frames.to_vec())
                    })
                    .collect();
                assert_eq!(blocks, naive.blocks(*slot, s.position + s.rows));
            }
            // What the quick check takes, the whole one does, unless a block in the middle of a row
            // has changed: here they may.
            let quick = limits(&layout).check_kept(&input, &mut kept, &mut scratch);
            let whole = limits(&layout).check(&listed, &mut scratch);
            kept.rows.iter_mut().for_each(|row| row.full = 0);
            let fresh = limits(&layout).check_kept(&input, &mut kept, &mut scratch);
            if fresh.is_ok() {
                assert_eq!((&quick, &whole), (&fresh, &fresh), "{input:?}");
                accepted += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(accepted > 500 && refused > 500, "{accepted} and {refused}");
}

#[test]
fn lists_become_deltas_and_lists_again() {
    let layout = layout();
    let input = tables(&layout).listed(&step(&[(0, seq(0, 3, 130)), (2, seq(3, 2, 128))]));
    assert_eq!((input.blocks.len(), input.is_kept()), (4, false));
    let kept = input.kept();
    assert_eq!((kept.blocks.len(), kept.is_kept()), (0, true));
    let mut again = KeptTables::new(SHAPE, FRAMES);
    again.apply(&layout, &kept.deltas, |_| ()).unwrap();
    let mut lists = again.listed(&kept);
    // Those of `input` come first.
    assert_eq!(lists.frames.split_off(input.frames.len()), input.frames);
    assert_eq!(lists.frames, input.frames);
}
