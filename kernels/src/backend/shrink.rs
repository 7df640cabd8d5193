//! Shrinks of a step: full blocks that go to a later precision level, their check and failures.

use super::{BlockLevels, StepInput, StepInputError as E, StepLimits};
use crate::formats::FormatError;
use crate::kv::Side;

/// A full block that goes to a later precision level: every page is written in its new format, to
/// new frames. The old frames stay as they were, so a reader sees the whole block before or the
/// whole block after.
///
/// It names frames and not the block, since the tables may have the old ones or the new ones. Of a
/// block behind a sliding window, all windowed frames may be [`NO_FRAME`]: then pages of layers
/// with a window are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shrink {
    /// Level that the block is at.
    pub from: u16,
    /// Level that it goes to; no page may gain bits.
    pub to: u16,
    /// First of its present frames, into [`StepInput::shrink_frames`]; as many as `from` takes.
    pub source: u32,
    /// First of its new frames, into [`StepInput::shrink_frames`]; as many as `to` takes.
    pub target: u32,
}

/// In place of a frame of a block that lies behind the windows of all its sequences: one that only
/// layers with a sliding window use.
pub const NO_FRAME: u32 = u32::MAX;

/// A block that could not be shrunk: its old frames are as they were, its new ones hold anything.
/// Rows of the same step whose tables name the new frames have read the old ones. If the tables
/// name the new ones, the caller's next deltas have to bring the old ones back.
#[derive(Debug, Clone, PartialEq)]
pub struct ShrinkFailure {
    /// Index into [`StepInput::shrinks`].
    pub shrink: usize,
    /// Layer of the first page that failed.
    pub layer: usize,
    /// Its side.
    pub side: Side,
    /// Its KV head.
    pub kv_head: usize,
    /// Why.
    pub error: FormatError,
}

impl std::fmt::Display for ShrinkFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            shrink,
            layer,
            side,
            kv_head,
            error,
        } = self;
        write!(
            f,
            "shrink {shrink}, layer {layer}, side {side:?}, head {kv_head}: {error}"
        )
    }
}

impl Shrink {
    /// Its present frames and its new ones. The shrink has been checked.
    pub(crate) fn frames<'a>(
        &self,
        levels: &impl BlockLevels,
        input: &'a StepInput,
    ) -> (&'a [u32], &'a [u32]) {
        let list = |first: u32, level| {
            &input.shrink_frames[first as usize..][..levels.frames(level) as usize]
        };
        (list(self.source, self.from), list(self.target, self.to))
    }

    /// Whether pages of layers with a sliding window are left out.
    pub(crate) fn is_trimmed(&self, levels: &impl BlockLevels, input: &StepInput) -> bool {
        let (source, target) = self.frames(levels, input);
        let mut lists = [source, target].into_iter();
        lists.any(|list| list.last() == Some(&NO_FRAME))
    }
}

impl<L: BlockLevels> StepLimits<'_, L> {
    /// Afterwards: both levels exist, every page moves down its ladder or stays, all frames are
    /// in range, and no frame of a shrink is a frame of another one, written by a copy or written
    /// by the step's rows. Copies come first, so they may read what shrinks read: a block that
    /// several sequences share can shrink in the step in which the last of them that needed it at
    /// 16 bit takes its copy. `written` holds the frames that rows are written to.
    pub(super) fn check_shrinks(&self, input: &StepInput, written: &[u32]) -> Result<(), E> {
        if input.shrinks.is_empty() {
            return Ok(());
        }
        // (frame, shrink, is a target)
        let mut used = Vec::new();
        for (shrink, s) in input.shrinks.iter().enumerate() {
            let levels = self.layout.count();
            for level in [s.from, s.to] {
                if usize::from(level) >= levels {
                    return Err(E::ShrinkLevel {
                        shrink,
                        level,
                        levels,
                    });
                }
            }
            if s.from == s.to || s.to == 0 {
                return Err(E::ShrinkNowhere {
                    shrink,
                    from: s.from,
                    to: s.to,
                });
            }
            self.layout.check_shrink(shrink, s.from, s.to)?;
            for (first, level) in [(s.source, s.from), (s.target, s.to)] {
                let end = u64::from(first) + u64::from(self.layout.frames(level));
                if end > input.shrink_frames.len() as u64 {
                    return Err(E::ShrinkFrames {
                        shrink,
                        first,
                        end,
                        len: input.shrink_frames.len(),
                    });
                }
            }
            let (source, target) = s.frames(self.layout, input);
            let is_trimmed = s.is_trimmed(self.layout, input);
            for (frames, level) in [(source, s.from), (target, s.to)] {
                for (index, frame) in frames.iter().enumerate() {
                    let is_missing = is_trimmed && self.layout.is_windowed(level, index);
                    if (*frame == NO_FRAME) != is_missing {
                        return Err(E::ShrinkTrimmed { shrink, index });
                    }
                }
            }
            let [source, target] =
                [source, target].map(|list| list.iter().filter(|f| **f != NO_FRAME));
            used.extend(source.map(|f| (*f, shrink, false)));
            used.extend(target.map(|f| (*f, shrink, true)));
        }
        used.sort_unstable();
        let alias = |frame, shrink| E::ShrinkAliased { shrink, frame };
        for pair in used.windows(2) {
            // Two shrinks may not even share a source: a block has one new place.
            if pair[0].0 == pair[1].0 {
                return Err(alias(pair[0].0, pair[1].1));
            }
        }
        let find = |frame: u32| {
            let at = used.binary_search_by_key(&frame, |u| u.0);
            at.ok().map(|i| used[i])
        };
        for copy in &input.copies {
            let written = find(copy.dst);
            let read_too_early = find(copy.src).filter(|(_, _, is_target)| *is_target);
            if let Some((frame, shrink, _)) = written.or(read_too_early) {
                return Err(alias(frame, shrink));
            }
        }
        for frame in written {
            if let Some((frame, shrink, _)) = find(*frame) {
                return Err(alias(frame, shrink));
            }
        }
        Ok(())
    }
}
