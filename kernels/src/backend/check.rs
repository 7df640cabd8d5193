//! Checks a [`StepInput`] against the model and the pool, so that no backend can be led out of
//! bounds by its caller.

use super::{StepInput, StepInputError as E, sample};
use crate::kv::KvLayout;
use crate::{SUB_BLOCK_TOKENS, SUB_BLOCKS};

/// What a step's indices are checked against.
#[derive(Debug, Clone, Copy)]
pub struct StepLimits<'a> {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Where the pages of a block lie at every schedule position.
    pub layout: &'a KvLayout,
    /// Frames in the pool.
    pub pool_frames: u32,
    /// Draws of the step submitted before, whose tokens this one may take; `None`: the backend
    /// draws none.
    pub drawn: Option<u32>,
}

/// Scratch for [`StepLimits::check`], reused between steps.
#[derive(Debug, Default)]
pub struct CheckScratch {
    /// (frame, sequence) of every frame that the step's rows are written to.
    pub(super) written: Vec<(u32, u32)>,
}

impl StepLimits<'_> {
    /// Returns the first contradiction found. Afterwards: every token, block, frame and logit row
    /// is in range, the sequences partition the rows, the blocks of each sequence reach its last
    /// token, rows are written to 16-bit sub-blocks only, no frame is written by two sub-blocks,
    /// and shrinks lead down into frames that nothing else touches.
    ///
    /// A sequence may read a frame that another one writes in the same step (a prefix published
    /// by this very step): every layer appends all rows before any row attends.
    pub fn check(&self, input: &StepInput, scratch: &mut CheckScratch) -> Result<(), E> {
        if input.is_kept() {
            return Err(E::KeepsNoTables);
        }
        self.check_apart_from_memory(input)?;
        scratch.written.clear();
        for seq in 0..input.seqs.len() {
            self.check_memory(input, seq, &mut scratch.written)?;
        }
        scratch.written.sort_unstable();
        if let Some(w) = scratch.written.windows(2).find(|w| w[0].0 == w[1].0) {
            return Err(E::Aliased {
                seq: w[0].1 as usize,
                frame: w[0].0,
                other: w[1].1 as usize,
            });
        }
        self.check_shrinks(input, &scratch.written)
    }

    /// Everything but the memory of the sequences.
    pub(super) fn check_apart_from_memory(&self, input: &StepInput) -> Result<(), E> {
        for (what, len) in [
            ("tokens", input.tokens.len()),
            ("seqs", input.seqs.len()),
            ("blocks", input.blocks.len()),
            ("frames", input.frames.len()),
            ("shrinks", input.shrinks.len()),
            ("draws", input.draws.len()),
            ("edits", input.edits.len()),
        ] {
            if len > 1 << 31 {
                return Err(E::TooMany { what, len });
            }
        }
        self.check_tokens(input)?;
        self.check_draws(input)?;
        self.check_frames(input)?;
        self.check_rows(input)
    }

    fn check_tokens(&self, input: &StepInput) -> Result<(), E> {
        let vocab = self.vocab;
        for (row, &token) in input.tokens.iter().enumerate() {
            match (sample::draw_of(token), self.drawn) {
                (Some(draw), Some(draws)) if draw >= draws => {
                    return Err(E::NotDrawn { row, draw, draws });
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

    fn check_draws(&self, input: &StepInput) -> Result<(), E> {
        let (draws, rows) = (&input.draws, input.tokens.len());
        match self.drawn {
            Some(before) => sample::check(draws, &input.edits, rows, before),
            None if draws.is_empty() => Ok(()),
            None => Err(E::CannotDraw { draws: draws.len() }),
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
        // Hundreds of thousands: the largest first, which the compiler makes vectors of, then the
        // one to name.
        let largest = input.frames.iter().fold(0, |most, &id| most.max(id));
        if largest >= pool {
            for &id in &input.frames {
                frame("a block", id)?;
            }
        }
        let len = input.frames.len();
        for (block, b) in input.blocks.iter().enumerate() {
            let end = u64::from(b.first_frame) + u64::from(b.frames);
            if end > len as u64 {
                let first = b.first_frame;
                return Err(E::Frames {
                    block,
                    first,
                    end,
                    len,
                });
            }
            let (position, positions) = (b.schedule_position, self.layout.positions());
            if usize::from(position) >= positions {
                return Err(E::Position {
                    block,
                    position,
                    positions,
                });
            }
            let expected = self.layout.frames(position);
            if position > 0 && b.frames != expected {
                return Err(E::ShrunkFrames {
                    block,
                    position,
                    frames: b.frames,
                    expected,
                });
            }
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

    fn check_memory(
        &self,
        input: &StepInput,
        seq: usize,
        written: &mut Vec<(u32, u32)>,
    ) -> Result<(), E> {
        let s = &input.seqs[seq];
        let end = u64::from(s.first_block) + u64::from(s.blocks);
        let Some(blocks) = input
            .blocks
            .get(s.first_block as usize..end.min(usize::MAX as u64) as usize)
        else {
            return Err(E::Blocks {
                seq,
                first: s.first_block,
                end,
                len: input.blocks.len(),
            });
        };
        let fps = self.layout.frame().frames_per_sub_block;
        let tokens = u64::from(s.position) + u64::from(s.rows);
        let mut sub_blocks = 0u64;
        for b in blocks {
            let held = match b.schedule_position {
                0 => (b.frames as usize / fps).min(SUB_BLOCKS),
                _ => SUB_BLOCKS,
            };
            sub_blocks += held as u64;
            if held < SUB_BLOCKS {
                break;
            }
        }
        let capacity = sub_blocks * SUB_BLOCK_TOKENS as u64;
        if tokens > capacity {
            return Err(E::Capacity {
                seq,
                tokens,
                capacity,
            });
        }
        let first = s.position as usize / SUB_BLOCK_TOKENS;
        let last = (tokens as usize - 1) / SUB_BLOCK_TOKENS;
        for sub_block in first..=last {
            let index = sub_block / SUB_BLOCKS;
            let b = &blocks[index];
            if b.schedule_position != 0 {
                let block = s.first_block as usize + index;
                return Err(E::Sealed { seq, block });
            }
            let start = b.first_frame as usize + sub_block % SUB_BLOCKS * fps;
            let frames = &input.frames[start..start + fps];
            written.extend(frames.iter().map(|f| (*f, seq as u32)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BlockRef, Draw, FrameCopy, SeqRows, Shrink, drawn_token};
    use super::*;
    use crate::formats::FormatId as F;
    use crate::kv::{FrameLayout, KvGeometry};

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

    /// Two sequences: 130 tokens known and 3 rows new; 0 known and 2 new.
    fn good() -> StepInput {
        let seq = |first_row, rows, position, first_block, blocks| SeqRows {
            first_row,
            rows,
            position,
            first_block,
            blocks,
        };
        let block = |first_frame, frames| BlockRef {
            schedule_position: 0,
            first_frame,
            frames,
        };
        StepInput {
            copies: vec![FrameCopy { src: 99, dst: 0 }],
            shrinks: vec![],
            tokens: vec![1, 2, 3, 4, 9],
            seqs: vec![seq(0, 3, 130, 0, 2), seq(3, 2, 0, 2, 1)],
            blocks: vec![block(0, 16), block(16, 2), block(18, 4)],
            frames: (0..22).collect(),
            logit_rows: vec![2, 4],
            ..StepInput::default()
        }
    }

    fn check(change: impl FnOnce(&mut StepInput)) -> Result<(), E> {
        check_with(None, change)
    }

    fn check_with(drawn: Option<u32>, change: impl FnOnce(&mut StepInput)) -> Result<(), E> {
        let mut input = good();
        change(&mut input);
        let limits = StepLimits {
            vocab: 10,
            layout: &layout(),
            pool_frames: 100,
            drawn,
        };
        limits.check(&input, &mut CheckScratch::default())
    }

    #[test]
    fn tokens_to_come_are_those_of_the_step_before() {
        let takes = |draw| move |i: &mut StepInput| i.tokens[1] = drawn_token(draw);
        assert_eq!(check_with(Some(3), takes(2)), Ok(()));
        let beyond = check_with(Some(3), takes(3));
        assert!(matches!(
            beyond,
            Err(E::NotDrawn {
                row: 1,
                draw: 3,
                ..
            })
        ));
        // A backend that draws nothing has no such tokens.
        assert!(matches!(check(takes(0)), Err(E::Token { row: 1, .. })));
        let draws = |i: &mut StepInput| i.draws.push(Draw::greedy(0));
        assert_eq!(check_with(Some(0), draws), Ok(()));
        assert_eq!(check(draws), Err(E::CannotDraw { draws: 1 }));
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
        refuses!(Frame { .. }, |i| i.frames[3] = 100);
        refuses!(Frames { block: 2, .. }, |i| i.blocks[2].first_frame =
            u32::MAX);
        refuses!(Frames { block: 2, .. }, |i| i.blocks[2].frames = 5);
        refuses!(Position { block: 1, .. }, |i| i.blocks[1]
            .schedule_position = 3);
        refuses!(ShrunkFrames { block: 1, .. }, |i| i.blocks[1]
            .schedule_position =
            1);
        refuses!(Rows { seq: 0, .. }, |i| i.seqs[0].first_row = 1);
        refuses!(Rows { seq: 1, .. }, |i| i.seqs[1].rows = 3);
        refuses!(Rows { seq: 1, .. }, |i| i.seqs[1].rows = u32::MAX);
        refuses!(Rows { seq: 1, .. }, |i| i.seqs[1].rows = 0);
        refuses!(Uncovered { .. }, |i| i.seqs[1].rows = 1);
        refuses!(Blocks { seq: 1, .. }, |i| i.seqs[1].blocks = 2);
        refuses!(Blocks { seq: 0, .. }, |i| i.seqs[0].first_block = u32::MAX);
        refuses!(Capacity { seq: 0, .. }, |i| i.seqs[0].position = 142);
        refuses!(Capacity { seq: 0, .. }, |i| i.seqs[0].position = u32::MAX);
        refuses!(Capacity { seq: 0, .. }, |i| i.blocks[0].frames = 15);
        refuses!(Capacity { seq: 0, .. }, |i| i.seqs[0].blocks = 1);
        refuses!(Capacity { seq: 1, .. }, |i| i.blocks[2].frames = 1);
        refuses!(
            Aliased {
                seq: 0,
                frame: 16,
                other: 1
            },
            |i| i.frames[18] = 16
        );
        refuses!(
            Aliased {
                seq: 0,
                other: 0,
                ..
            },
            |i| i.frames[17] = 16
        );
    }

    /// The first block of the first sequence goes from 16 bit to position 1, in frames 50...
    fn shrinking() -> StepInput {
        let mut input = good();
        let frames = layout().position_frames();
        assert_eq!(frames, [16, 10, 4]);
        let target = input.frames.len() as u32;
        input.frames.extend(50..60);
        // The block's old frames, which no block names any longer.
        let source = input.frames.len() as u32;
        input.frames.extend(30..46);
        input.blocks[0] = BlockRef {
            schedule_position: 1,
            first_frame: target,
            frames: 10,
        };
        input.shrinks = vec![Shrink {
            from: 0,
            to: 1,
            source,
            target,
        }];
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
        refuses!(ShrinkPosition { position: 3, .. }, |i: &mut StepInput| i
            .shrinks[0]
            .to =
            3);
        refuses!(ShrinkPosition { .. }, |i: &mut StepInput| i.shrinks[0]
            .from =
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
        refuses!(Frame { .. }, |i: &mut StepInput| i.frames[30] = 100);
        // Into its own source, a frame that a row writes, a frame of another shrink, a copied
        // frame.
        refuses!(ShrinkAliased { frame: 30, .. }, |i: &mut StepInput| i
            .frames[22] =
            30);
        refuses!(ShrinkAliased { frame: 16, .. }, |i: &mut StepInput| i
            .frames[22] =
            16);
        refuses!(ShrinkAliased { .. }, |i: &mut StepInput| i
            .shrinks
            .push(i.shrinks[0]));
        refuses!(ShrinkAliased { frame: 99, .. }, |i: &mut StepInput| i
            .frames[22] =
            99);
        refuses!(ShrinkAliased { frame: 17, .. }, |i: &mut StepInput| i
            .frames[32] =
            17);
        // Rows into a block that has been shrunk.
        refuses!(Sealed { seq: 0, block: 0 }, |i: &mut StepInput| {
            i.seqs[0].position = 120;
        });
    }

    #[test]
    fn reading_what_another_sequence_writes_is_allowed() {
        // Sequence 1 reads, as its first block, the block that sequence 0 fills in this step.
        let shared = |i: &mut StepInput| {
            i.blocks.truncate(2);
            i.seqs[0].position = 125;
            i.seqs[0].blocks = 1;
            i.seqs[1].position = 128;
            i.seqs[1].first_block = 0;
            i.seqs[1].blocks = 2;
        };
        assert_eq!(check(shared), Ok(()));
    }
}
