//! Which sequences are read in scratch, when, and where the tables name it.

use super::*;
use crate::backend::{TableBuilder, TableDelta, TableShape};
use crate::cuda::driver::Device;
use crate::formats::FormatId;
use crate::kv::KvGeometry;

const FRAMES: u32 = 600;

/// Of each sequence that reads scratch, the first frame of each of its blocks there.
type Places = Vec<Option<Vec<u32>>>;

/// What `Rewrite` is given: of each sequence its rows and its blocks, by number and level.
struct Setting {
    layout: KvLayout,
    capacity: StepCapacity,
    input: StepInput,
}

impl Setting {
    fn new(seqs: &[(u32, &[(u32, u16)])]) -> Self {
        let geometry = KvGeometry {
            layers: 2,
            kv_heads: 2,
            head_dim: 64,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        let shrunk = [vec![FormatId::Int8; 4], vec![FormatId::Int4; 4]];
        let layout = KvLayout::new(geometry, geometry.frame_layout(), &shrunk).unwrap();
        let (mut input, mut tables) = (StepInput::default(), TableBuilder::default());
        for (slot, &(rows, blocks)) in (0..).zip(seqs) {
            let position = blocks.len() as u32 * 128 - rows;
            input.push_seq(slot, position, &vec![0; rows as usize]);
            for (index, &(number, level)) in blocks.iter().enumerate() {
                let first = 20 * number;
                let frames: Vec<u32> = (first..first + layout.frames(level)).collect();
                tables.set(slot, index, level, &frames);
            }
        }
        tables.take_deltas(&mut input.deltas);
        let capacity = StepCapacity {
            rows: 0,
            seqs: 4,
            blocks: 16,
        };
        Self {
            layout,
            capacity,
            input,
        }
    }

    /// The plan, and where sequences read.
    fn plan(&self, reads: bool) -> Result<(Rewrite, Places), CudaError> {
        let device = Device::open(0).unwrap();
        let scratch = Scratch::of(&self.layout, FRAMES, &self.capacity, 1);
        assert_eq!(scratch.blocks, 4);
        let shape = TableShape {
            row_blocks: 6,
            ..self.capacity.tables(&self.layout, FRAMES)
        };
        let mut tables = DeviceTables::new(&device, shape, scratch.shape).unwrap();
        tables.place_scratch(|i| scratch.block_frames(&self.layout, FRAMES, i));
        let rule = Rule {
            scratch,
            first: FRAMES,
            reads,
        };
        let mut known = BlockTables::new(shape, FRAMES);
        let mut rewrite = Rewrite::default();
        known
            .apply(&self.layout, &self.input.deltas, |d| tables.apply(d))
            .unwrap();
        rewrite.plan(rule, &self.input, (&known, &mut tables))?;
        let frame = |entry| tables.frames_at(entry, 1)[0];
        let seqs = self.input.seqs.iter().zip(&rewrite.in_scratch);
        let places = seqs.map(|(seq, place)| {
            let blocks = known.blocks_of(seq).len() as u32;
            place.map(|p| (0..blocks).map(|i| frame(p.first_block + i)).collect())
        });
        let places = places.collect();
        assert!(known.has_shrunk());
        let anew = self.input.deltas.iter().filter_map(|delta| match *delta {
            TableDelta::Block { block, .. } => Some(TableDelta::Block { block, level: 0 }),
            _ => None,
        });
        known
            .apply(&self.layout, &anew.collect::<Vec<_>>(), |_| ())
            .unwrap();
        assert!(!known.has_shrunk());
        Ok((rewrite, places))
    }
}

/// The first frame of a block in scratch.
fn in_scratch(index: u32) -> u32 {
    FRAMES + index * SUB_BLOCKS as u32
}

#[test]
fn prompts_read_scratch_and_decoding_sequences_do_not() {
    let blocks: [&[_]; 3] = [&[(0, 1), (1, 2), (2, 0)], &[(3, 0)], &[(0, 1), (4, 0)]];
    let setting = Setting::new(&[(1, blocks[0]), (9, blocks[1]), (9, blocks[2])]);
    let (rewrite, places) = setting.plan(true).unwrap();
    assert!(rewrite.mixed);
    assert_eq!(places, [None, None, Some(vec![in_scratch(0), 80])]);
    assert_eq!(rewrite.turns.as_slice(), std::slice::from_ref(&(0..1)));
    let (rewrite, places) = setting.plan(false).unwrap();
    assert!(!rewrite.mixed);
    // Both read block 0 at the same place.
    let first = vec![in_scratch(0), in_scratch(1), 40];
    assert_eq!(places, [Some(first), None, Some(vec![in_scratch(0), 80])]);
}

#[test]
fn sequences_take_turns_when_scratch_is_short() {
    let long: &[_] = &[(0, 1), (1, 1), (2, 1), (9, 0)];
    let other: &[_] = &[(2, 1), (3, 1), (10, 0)];
    let last: &[_] = &[(0, 1), (4, 2), (11, 0)];
    let (rewrite, places) = Setting::new(&[(5, long), (5, other), (5, last)])
        .plan(true)
        .unwrap();
    // Blocks 0, 1, 2 and 3 fill the first turn; 0 is decoded again in the second, from the same
    // list of frames.
    let turns: Vec<_> = rewrite.in_scratch.iter().map(|p| p.unwrap().turn).collect();
    assert_eq!(turns, [0, 0, 1]);
    assert_eq!(rewrite.turns, [0..4, 4..6]);
    let sources: Vec<_> = rewrite.jobs.iter().map(|job| job[1]).collect();
    assert_eq!(sources[4], sources[0]);
    assert!(sources[..4].is_sorted() && sources[5] > sources[3]);
    let place = in_scratch;
    assert_eq!(places[1], Some(vec![place(2), place(3), 200]));
    assert_eq!(places[2], Some(vec![place(0), place(1), 220]));
}

#[test]
fn a_block_whose_shrink_may_fail_is_read_in_scratch() {
    let blocks: &[_] = &[(0, 1), (1, 1), (2, 0)];
    let mut setting = Setting::new(&[(1, blocks), (1, &[(1, 1), (3, 0)])]);
    let layout = &setting.layout;
    let old: Vec<u32> = (300..300 + layout.frames(0)).collect();
    let new: Vec<u32> = (0..layout.frames(1)).collect();
    setting.input.push_shrink((0, &old), (1, &new));
    let (rewrite, places) = setting.plan(true).unwrap();
    assert_eq!(places, [Some(vec![in_scratch(0), in_scratch(1), 40]), None]);
    assert_eq!([rewrite.jobs[0][3], rewrite.jobs[1][3]], [0, NONE]);
    assert!(rewrite.mixed);
}

#[test]
fn a_sequence_longer_than_scratch_is_refused() {
    let setting = Setting::new(&[(2, &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 0)])]);
    let error = setting.plan(true).unwrap_err();
    assert!(error.to_string().contains("5 shrunk blocks"), "{error}");
}
