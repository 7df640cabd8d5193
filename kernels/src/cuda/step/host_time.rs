//! What the host does for one decode step of 256 sequences of an 8B model: a measurement, run by
//! hand with `--ignored --nocapture`, optimised.

use std::time::{Duration, Instant};

use super::*;
use crate::BLOCK_TOKENS;
use crate::backend::{BlockTables, SeqRows, StepLimits, TableDelta};
use crate::cuda::attention::{Attention, ScoreSpec};
use crate::cuda::ops::HeadSpec;
use crate::kv::KvGeometry;

const SEQS: usize = 256;
const WARM: usize = 20;
const STEPS: usize = 200;
/// Tokens that a sequence may get while it is measured.
const MORE: usize = 3 * BLOCK_TOKENS;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Sequence `seq` now has `position + 1` tokens: what of its table is new. Its blocks follow each
/// other, as their frames do.
fn grown(seq: usize, row_blocks: usize, position: usize, per_block: usize) -> Vec<TableDelta> {
    let (block, sub_block) = (
        (seq * row_blocks + position / 128) as u32,
        position % 128 / 16,
    );
    let mut deltas = Vec::new();
    if position.is_multiple_of(128) {
        deltas.push(TableDelta::Block { block, level: 0 });
    }
    let each = per_block as u32 / 8;
    for index in sub_block as u32 * each..(sub_block as u32 + 1) * each {
        deltas.push(TableDelta::Frame {
            block,
            index,
            frame: block * per_block as u32 + index,
        });
    }
    if position.is_multiple_of(128) {
        deltas.push(TableDelta::Row {
            slot: seq as u32,
            index: (position / 128) as u32,
            block,
        });
    }
    deltas
}

#[test]
#[ignore = "a measurement"]
fn host_time_of_a_decode_step() {
    let geometry = KvGeometry {
        layers: 32,
        kv_heads: 8,
        head_dim: 128,
        windowed: crate::kv::WindowedLayers::NONE,
    };
    let layout = KvLayout::sixteen_bit(geometry).unwrap();
    let per_block = layout.frames(0) as usize;
    for tokens in [1152, 8192] {
        let row_blocks = (tokens + MORE) / BLOCK_TOKENS;
        let blocks = SEQS * row_blocks;
        let frames = blocks * per_block;
        let device = Device::open(0).unwrap();
        let capacity = StepCapacity {
            rows: SEQS,
            seqs: SEQS,
            blocks,
        };
        let stream = Stream::new(&device).unwrap();
        let rule = SplitRule::default();
        let heads = HeadSpec::plain(geometry, 32);
        let attention = Attention::new(
            &device,
            geometry,
            heads,
            &[ScoreSpec::default()],
            (SEQS, blocks),
            1,
            rule,
            (None, None),
        )
        .unwrap();
        let tables = capacity.tables(&layout, frames as u32);
        let sizes = (tables, ScratchShape::default());
        let mut step = StepBuffers::new(&device, capacity, sizes, rule, &attention).unwrap();
        let mut known = BlockTables::new(tables, frames as u32);
        let limits = StepLimits {
            vocab: 128_256,
            layout: &layout,
            pool_frames: frames as u32,
            samples_before: Some(0),
        };
        // They enter sub-blocks and blocks at different steps.
        let starts: Vec<usize> = (0..SEQS).map(|s| tokens - s % 128).collect();
        let mut input = StepInput {
            tokens: vec![1; SEQS],
            seqs: (0..SEQS as u32)
                .map(|slot| SeqRows {
                    slot,
                    first_row: slot,
                    rows: 1,
                    position: 0,
                })
                .collect(),
            ..StepInput::default()
        };
        for (seq, start) in starts.iter().enumerate() {
            for position in (0..*start).step_by(16) {
                input
                    .deltas
                    .extend(grown(seq, row_blocks, position, per_block));
            }
        }
        let mut times: [Vec<Duration>; 4] = Default::default();
        for s in 0..STEPS {
            for (seq, start) in starts.iter().enumerate() {
                let position = start + s;
                input.seqs[seq].position = position as u32;
                if position.is_multiple_of(16) {
                    input
                        .deltas
                        .extend(grown(seq, row_blocks, position, per_block));
                }
            }
            let began = Instant::now();
            let on_device = &mut step.tables;
            known
                .apply(&layout, &input.deltas, |d| on_device.apply(d))
                .unwrap();
            limits.check(&input, &mut known).unwrap();
            let checked = began.elapsed();
            // `load` would do it; what a launch takes on the emulator is not what it takes on a
            // device.
            step.tables.flush(&stream).unwrap();
            let flushed = began.elapsed() - checked;
            step.load(&stream, &input, &[], SEQS, (false, &[])).unwrap();
            let loaded = began.elapsed() - checked - flushed;
            let began = Instant::now();
            step.plan.plan(&input.seqs, 4, &[]);
            if s >= WARM {
                times[0].push(checked);
                times[1].push(loaded);
                times[2].push(began.elapsed());
                times[3].push(flushed);
            }
            input.deltas.clear();
        }
        let [apply, load, plan, flush] = times.map(median);
        println!(
            "{SEQS} sequences of {tokens} tokens: deltas and check {apply:?}, changes of tables \
             {flush:?}, load {load:?} (of it attention's plan {plan:?})"
        );
    }
}
