//! Checks a [`StepInput`] against the model and the pool, so that no backend can be led out of
//! bounds by its caller.

use super::{BlockLevels, BlockTables, NO_FRAME, StepInput, StepInputError as E, sample};
use crate::kv::KvLayout;

/// What a step's indices are checked against.
#[derive(Debug, Clone, Copy)]
pub struct StepLimits<'a, L = KvLayout> {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// What a block takes at every precision level.
    pub layout: &'a L,
    /// Frames in the pool.
    pub pool_frames: u32,
    /// Samples of the step submitted before, whose tokens this one may take; `None`: the backend
    /// samples none.
    pub samples_before: Option<u32>,
}

impl<L: BlockLevels> StepLimits<'_, L> {
    /// Returns the first contradiction found. `tables` have the step's deltas already.
    ///
    /// Afterwards: every token, frame and logit row is in range, the sequences partition the rows,
    /// the blocks of each sequence reach its last token, rows are written to 16-bit blocks only, no
    /// frame is written through two sub-blocks, and shrinks lead down into frames that nothing else
    /// touches. Blocks that are only read are looked at once, when they come into a row, so the
    /// time depends on the step's deltas and sequences, not on their lengths.
    ///
    /// A sequence may read a frame that another one writes in the same step (a prefix published
    /// by this very step): every layer appends all rows before any row attends.
    pub fn check(&self, input: &StepInput, tables: &mut BlockTables) -> Result<(), E> {
        self.check_apart_from_memory(input)?;
        let written = tables.check_memory(self.layout, input)?;
        self.check_shrinks(input, written)
    }

    /// Everything but the memory of the sequences.
    fn check_apart_from_memory(&self, input: &StepInput) -> Result<(), E> {
        for (what, len) in [
            ("tokens", input.tokens.len()),
            ("seqs", input.seqs.len()),
            ("shrinks", input.shrinks.len()),
            ("shrink frames", input.shrink_frames.len()),
            ("samples", input.samples.len()),
            ("edits", input.edits.len()),
        ] {
            if len > 1 << 31 {
                return Err(E::TooMany { what, len });
            }
        }
        self.check_tokens(input)?;
        self.check_samples(input)?;
        self.check_frames(input)?;
        self.check_rows(input)
    }

    fn check_tokens(&self, input: &StepInput) -> Result<(), E> {
        let vocab = self.vocab;
        for (row, &token) in input.tokens.iter().enumerate() {
            match (sample::pending_sample_of(token), self.samples_before) {
                (Some(sample), Some(samples)) if sample >= samples => {
                    return Err(E::NotSampled {
                        row,
                        sample,
                        samples,
                    });
                }
                (Some(_), Some(_)) => {}
                _ if token as usize >= vocab => return Err(E::Token { row, token, vocab }),
                _ => {}
            }
        }
        let rows = input.tokens.len();
        let mut previous = None;
        for &row in &input.logit_rows {
            if row as usize >= rows || previous.is_some_and(|p| row <= p) {
                return Err(E::LogitRow { row, rows });
            }
            previous = Some(row);
        }
        Ok(())
    }

    fn check_samples(&self, input: &StepInput) -> Result<(), E> {
        let (samples, rows) = (&input.samples, input.tokens.len());
        match self.samples_before {
            Some(before) => sample::check(samples, &input.edits, rows, before),
            None if samples.is_empty() => Ok(()),
            None => Err(E::CannotSample {
                samples: samples.len(),
            }),
        }
    }

    fn check_frames(&self, input: &StepInput) -> Result<(), E> {
        let pool = self.pool_frames;
        let frame = |what, frame| {
            if frame < pool {
                Ok(())
            } else {
                Err(E::Frame { what, frame, pool })
            }
        };
        for copy in &input.copies {
            frame("a copy", copy.src)?;
            frame("a copy", copy.dst)?;
        }
        for &id in input.shrink_frames.iter().filter(|id| **id != NO_FRAME) {
            frame("a shrink", id)?;
        }
        Ok(())
    }

    fn check_rows(&self, input: &StepInput) -> Result<(), E> {
        let rows = input.tokens.len();
        let mut expected = 0;
        for (seq, s) in input.seqs.iter().enumerate() {
            let end = u64::from(s.first_row) + u64::from(s.rows);
            if s.first_row as usize != expected || end > rows as u64 || s.rows == 0 {
                return Err(E::Rows {
                    seq,
                    first: s.first_row,
                    end,
                    expected,
                    rows,
                });
            }
            expected = end as usize;
        }
        if expected != rows {
            return Err(E::Uncovered { expected, rows });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::{
        FrameCopy, SampleRequest, TableBuilder, TableDelta as D, TableShape, pending_sample,
    };
    use super::*;
    use crate::formats::FormatId as F;
    use crate::kv::{FrameLayout, KvGeometry};

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

    /// A step over tables that it describes whole: row by row, the level and the frames of each
    /// block.
    fn over(rows: &[&[(u16, Range<u32>)]]) -> StepInput {
        let (mut input, mut tables) = (StepInput::default(), TableBuilder::default());
        for (slot, blocks) in (0..).zip(rows) {
            for (index, (level, frames)) in blocks.iter().enumerate() {
                let frames: Vec<u32> = frames.clone().collect();
                tables.set(slot, index, *level, &frames);
            }
        }
        tables.take_deltas(&mut input.deltas);
        input
    }

    /// Two sequences: 130 tokens known and 3 rows new; 0 known and 2 new. Three blocks.
    fn good() -> StepInput {
        rows_of(over(&[&[(0, 0..16), (0, 16..18)], &[(0, 18..22)]]))
    }

    fn rows_of(mut input: StepInput) -> StepInput {
        input.copies = vec![FrameCopy { src: 99, dst: 0 }];
        input.push_seq(0, 130, &[1, 2, 3]);
        input.push_seq(1, 0, &[4, 9]);
        input.logit_rows = vec![2, 4];
        input
    }

    fn check(change: impl FnOnce(&mut StepInput)) -> Result<(), E> {
        check_with(None, change)
    }

    fn check_with(
        samples_before: Option<u32>,
        change: impl FnOnce(&mut StepInput),
    ) -> Result<(), E> {
        let mut input = good();
        change(&mut input);
        let layout = layout();
        let limits = StepLimits {
            vocab: 10,
            layout: &layout,
            pool_frames: 100,
            samples_before,
        };
        let mut tables = BlockTables::new(TableShape::new(2, 3, &layout, 100), 100);
        tables.apply(&layout, &input.deltas, |_| ())?;
        limits.check(&input, &mut tables)
    }

    /// Frame `index` of `block`.
    fn frame_of(input: &mut StepInput, of: u32, at: u32) -> &mut u32 {
        let found = input.deltas.iter_mut().find_map(|delta| match delta {
            D::Frame {
                block,
                index,
                frame,
            } if (*block, *index) == (of, at) => Some(frame),
            _ => None,
        });
        found.expect("the block has such a frame")
    }

    /// Leaves `of` with so many frames.
    fn keep_frames(input: &mut StepInput, of: u32, frames: u32) {
        let is_kept = |delta: &D| match *delta {
            D::Frame { block, index, .. } => block != of || index < frames,
            _ => true,
        };
        input.deltas.retain(is_kept);
    }

    /// Puts a block elsewhere.
    fn put(input: &mut StepInput, of: u32, to: u16) {
        for delta in &mut input.deltas {
            if let D::Block { block, level } = delta
                && *block == of
            {
                *level = to;
            }
        }
    }

    #[test]
    fn tokens_to_come_are_those_of_the_step_before() {
        let takes = |sample| move |i: &mut StepInput| i.tokens[1] = pending_sample(sample);
        assert_eq!(check_with(Some(3), takes(2)), Ok(()));
        let beyond = check_with(Some(3), takes(3));
        assert!(matches!(
            beyond,
            Err(E::NotSampled {
                row: 1,
                sample: 3,
                ..
            })
        ));
        // A backend that samples nothing has no such tokens.
        assert!(matches!(check(takes(0)), Err(E::Token { row: 1, .. })));
        let samples = |i: &mut StepInput| i.samples.push(SampleRequest::greedy(0));
        assert_eq!(check_with(Some(0), samples), Ok(()));
        assert_eq!(check(samples), Err(E::CannotSample { samples: 1 }));
    }

    #[test]
    fn a_sound_step_passes() {
        assert_eq!(check(|_| ()), Ok(()));
        assert_eq!(check(|i| *i = StepInput::default()), Ok(()));
    }

    #[test]
    fn hostile_steps_are_refused() {
        use E::*;
        macro_rules! refuses {
            ($pattern:pat, $change:expr) => {
                let result = check($change);
                assert!(matches!(result, Err($pattern)), "{result:?}");
            };
        }
        refuses!(Token { row: 1, .. }, |i| i.tokens[1] = 10);
        refuses!(LogitRow { row: 5, .. }, |i| i.logit_rows[1] = 5);
        refuses!(LogitRow { row: 2, .. }, |i| i.logit_rows = vec![2, 2]);
        refuses!(Frame { frame: 100, .. }, |i| i.copies[0].src = 100);
        refuses!(Frame { .. }, |i| i.copies[0].dst = u32::MAX);
        refuses!(Delta { .. }, |i| *frame_of(i, 0, 3) = 100);
        refuses!(Delta { .. }, |i| put(i, 1, 3));
        refuses!(Capacity { seq: 0, .. }, |i| put(i, 1, 1));
        refuses!(Rows { seq: 0, .. }, |i| i.seqs[0].first_row = 1);
        refuses!(Rows { seq: 1, .. }, |i| i.seqs[1].rows = 3);
        refuses!(Rows { seq: 1, .. }, |i| i.seqs[1].rows = u32::MAX);
        refuses!(Rows { seq: 1, .. }, |i| i.seqs[1].rows = 0);
        refuses!(Uncovered { .. }, |i| i.seqs[1].rows = 1);
        refuses!(
            Slot {
                seq: 1,
                slot: 2,
                ..
            },
            |i| i.seqs[1].slot = 2
        );
        refuses!(Slot { seq: 0, .. }, |i| i.seqs[0].slot = u32::MAX);
        refuses!(Capacity { seq: 0, .. }, |i| i.seqs[0].position = 142);
        refuses!(Capacity { seq: 0, .. }, |i| i.seqs[0].position = u32::MAX);
        refuses!(Capacity { seq: 0, .. }, |i| keep_frames(i, 0, 15));
        refuses!(Capacity { seq: 0, .. }, |i| {
            i.deltas.retain(|d| {
                !matches!(
                    d,
                    D::Row {
                        slot: 0,
                        index: 1,
                        ..
                    }
                )
            });
        });
        refuses!(Capacity { seq: 1, .. }, |i| keep_frames(i, 2, 1));
        refuses!(
            Aliased {
                seq: 0,
                frame: 16,
                ..
            },
            |i| *frame_of(i, 2, 0) = 16
        );
        refuses!(
            Aliased {
                seq: 0,
                other: 0,
                ..
            },
            |i| *frame_of(i, 1, 1) = 16
        );
        refuses!(
            Aliased {
                seq: 1,
                other: 0,
                ..
            },
            |i| (i.seqs[1].slot, i.seqs[1].position) = (0, 133)
        );
    }

    /// The first block of the first sequence goes from 16 bit to level 1, in frames 50...
    fn shrinking() -> StepInput {
        assert_eq!(layout().level_frames(), [16, 10, 4]);
        let mut input = rows_of(over(&[&[(1, 50..60), (0, 16..18)], &[(0, 18..22)]]));
        // The block's old frames, which no block names any longer.
        let (old, new): (Vec<u32>, Vec<u32>) = ((30..46).collect(), (50..60).collect());
        input.push_shrink((0, &old), (1, &new));
        input
    }

    #[test]
    fn shrinks_lead_down_into_frames_of_their_own() {
        use E::*;
        let with = |change: &dyn Fn(&mut StepInput)| {
            check(|i| {
                *i = shrinking();
                change(i);
            })
        };
        assert_eq!(with(&|_| ()), Ok(()));
        macro_rules! refuses {
            ($pattern:pat, $change:expr) => {
                let result = with(&$change);
                assert!(matches!(result, Err($pattern)), "{result:?}");
            };
        }
        refuses!(ShrinkLevel { level: 3, .. }, |i: &mut StepInput| i
            .shrinks[0]
            .to =
            3);
        refuses!(ShrinkLevel { .. }, |i: &mut StepInput| i.shrinks[0].from =
            u16::MAX);
        refuses!(ShrinkNowhere { .. }, |i: &mut StepInput| i.shrinks[0]
            .from = 1);
        refuses!(ShrinkNowhere { .. }, |i: &mut StepInput| i.shrinks[0].to =
            0);
        refuses!(ShrinkFormats { layer: 0, .. }, |i: &mut StepInput| i
            .shrinks[0]
            .from =
            2);
        refuses!(ShrinkFrames { .. }, |i: &mut StepInput| i.shrinks[0]
            .source =
            u32::MAX);
        refuses!(ShrinkFrames { .. }, |i: &mut StepInput| i.shrinks[0]
            .target += 17);
        refuses!(Frame { .. }, |i: &mut StepInput| i.shrink_frames[8] = 100);
        // Into its own source, a frame that a row writes, a frame of another shrink, a copied
        // frame.
        refuses!(ShrinkAliased { frame: 30, .. }, |i: &mut StepInput| i
            .shrink_frames[16] =
            30);
        refuses!(ShrinkAliased { frame: 16, .. }, |i: &mut StepInput| i
            .shrink_frames[16] =
            16);
        refuses!(ShrinkAliased { .. }, |i: &mut StepInput| i
            .shrinks
            .push(i.shrinks[0]));
        refuses!(ShrinkAliased { frame: 99, .. }, |i: &mut StepInput| i
            .shrink_frames[16] =
            99);
        refuses!(ShrinkAliased { frame: 17, .. }, |i: &mut StepInput| i
            .shrink_frames[0] =
            17);
        // A copy may read what the shrink reads. It may not write there, nor read what is written.
        let copies =
            |src: u32, dst: u32| move |i: &mut StepInput| i.copies = vec![FrameCopy { src, dst }];
        assert_eq!(with(&copies(30, 80)), Ok(()));
        refuses!(ShrinkAliased { frame: 30, .. }, copies(80, 30));
        refuses!(ShrinkAliased { frame: 50, .. }, copies(50, 80));
        // Rows into a block that has been shrunk.
        refuses!(Sealed { seq: 0, block: 0 }, |i: &mut StepInput| {
            i.seqs[0].position = 120;
        });
    }

    #[test]
    fn reading_what_another_sequence_writes_is_allowed() {
        // Sequence 1 reads, as its first block, the block that sequence 0 fills in this step.
        let shared = |i: &mut StepInput| {
            *i = over(&[&[(0, 0..16)], &[(0, 0..16), (0, 16..18)]]);
            i.push_seq(0, 125, &[1, 2, 3]);
            i.push_seq(1, 128, &[4, 9]);
        };
        assert_eq!(check(shared), Ok(()));
    }
}
